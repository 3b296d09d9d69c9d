"""How the embedded models and their modules were made; not in the wheel."""
