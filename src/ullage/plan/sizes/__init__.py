"""Searches over sizes: the largest batch, the smallest GPU, the segments of a chain."""
