"""What is known without a run: GPUs, and families of models."""
