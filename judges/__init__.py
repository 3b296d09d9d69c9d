"""Judges, one file each: the file name is the judge's name. Installed as benchctl.judges."""
