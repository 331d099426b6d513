"""Rows scored by a cluster: the jobs that SLURM is given, and what it says of them.

`status` is among the readers: what it needs imports nothing heavy.
"""
