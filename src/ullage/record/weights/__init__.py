"""Weights that nobody reads: not initialised, not loaded, or made up."""
