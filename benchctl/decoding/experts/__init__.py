"""Experts that are loaded when needed: policies, tiers of memory, and the trace of their use."""
