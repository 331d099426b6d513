"""The only room that knows the file names of a run directory, and how its files are written and trusted."""
