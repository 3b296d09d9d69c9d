"""From records to data frames: rows, groups of runs that may be compared, sessions, and the comparison itself."""
