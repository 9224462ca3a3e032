"""GPU memory in tests: the parts of the pytest plugin."""
