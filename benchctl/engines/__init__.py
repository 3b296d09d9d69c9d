"""One file for each engine that can be a label; benchctl.serving holds what they share."""
