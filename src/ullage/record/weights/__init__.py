"""Weights whose values are not needed: initialisation is skipped, and files can be dummies."""
