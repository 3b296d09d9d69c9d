"""Experts that are loaded when needed: eviction policies, tiers of memory, the view that methods decode on."""
