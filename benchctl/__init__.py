"""benchctl measures ways to speed up the decoding of language models: one target, one loop, one baseline."""

__version__ = "0.2.0"
