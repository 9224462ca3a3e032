"""GPU memory in tests: what the pytest plugin is made of."""
