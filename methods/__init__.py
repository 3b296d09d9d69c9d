"""Methods, one file each: the file name is the method's name. Installed as benchctl.methods."""
