"""Several runs explained together: differences of two, sweeps, the ranks of a job."""
