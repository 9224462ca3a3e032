"""What rules measure: each turns the samples into readings of GPUs, processes and jobs."""
