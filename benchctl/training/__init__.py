"""Trains the reference models and, later, every trainable part of a method."""
