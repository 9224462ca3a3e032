"""What the front decides, without input or output: every function is given the time."""
