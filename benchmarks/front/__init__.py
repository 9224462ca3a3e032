"""Benchmarks of `ullage front`."""
