"""Trainable modules that several methods share, and the folder they are kept in."""
