"""From a suite of prompts to a file of measured rows."""
