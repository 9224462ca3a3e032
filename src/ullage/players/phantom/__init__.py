"""The GPU that is not there: a library in the place of NVIDIA's, and what starts programs."""
