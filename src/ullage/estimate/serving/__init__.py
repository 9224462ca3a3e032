"""Serving, in closed form: weights, KV cache, and what an engine takes besides."""
