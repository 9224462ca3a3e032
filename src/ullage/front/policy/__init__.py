"""The decisions of the front, without input or output: every function is given the time."""
