"""Facts that need no run: GPUs, and families of models."""
