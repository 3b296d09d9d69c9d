"""Intervals, significance, and the baseline measured against itself."""
