"""Benchmarks of benchctl itself, `python -m benchmarks`: ratios with intervals, never timed tests."""
