"""Techniques that make a training job take less memory: what each does, and how it is applied."""
