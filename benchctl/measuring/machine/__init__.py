"""The machine: its facts, its load and clocks while measuring, and advice."""
