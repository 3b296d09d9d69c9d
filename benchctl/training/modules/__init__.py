"""Training of a method's modules for a target that stays as it is."""
