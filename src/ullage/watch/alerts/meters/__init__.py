"""The meters of rules: each turns the samples into readings of GPUs, processes and jobs."""
