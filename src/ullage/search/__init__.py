"""Finds the fastest way to make a program fit: what a run cost, and which techniques go where."""
