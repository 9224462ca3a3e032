"""Weights whose values are not needed: not initialised, not loaded, or dummies."""
