"""Closed forms: what a model's shape says about memory, at once and without torch."""
