"""The numbers of a comparison: each has a name, a unit, a direction and a function."""
