"""Decoding: tensors in, tokens out. Knows no clock, no file format and no command line."""
