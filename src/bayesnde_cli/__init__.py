"""Density estimation that can be trusted, from a table on the command line."""

__version__ = "0.1.0"
