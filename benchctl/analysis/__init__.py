"""From records to tables and plots: pandas and numpy, no torch; works on a laptop from the results files alone."""
