"""Judges' scores as figures, and how far judges agree."""
