"""Mutants of src, and the tier of tests that catches each: `python -m benchmarks.net`."""
