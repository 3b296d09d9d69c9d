"""Comparisons with the code of the authors of methods, which is not part of this project."""
