"""Comparisons of several runs: differences between two runs, sweeps, the ranks of a job."""
