"""The only room that knows a file name of the run directory."""
