"""Holds a method, built in or not, to what it claims, on random targets made in memory: no files, no network."""
