"""What several drafters build on."""
