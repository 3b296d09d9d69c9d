"""Comparisons as tables: text, Markdown, CSV and JSON."""
