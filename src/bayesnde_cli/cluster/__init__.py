"""Scoring on a SLURM cluster: the scripts of an array job and its gather job, their submission, and the queue."""
