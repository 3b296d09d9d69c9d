"""Prompt suites: where they come from, and how they fit into the context."""
