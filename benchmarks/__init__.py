"""What the project measures about itself: accuracy against real GPUs, and speed."""
