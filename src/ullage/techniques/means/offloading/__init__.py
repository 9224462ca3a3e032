"""Activations, parameters and states in host memory: copies, streams, pinned slabs."""
