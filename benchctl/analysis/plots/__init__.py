"""The pictures that `benchctl plot` draws, one file each, and what they share."""
