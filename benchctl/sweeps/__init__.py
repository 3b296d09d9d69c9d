"""Sweeps: many runs of `benchctl run`, planned into a folder and run on one machine, a Ray cluster or Slurm."""
