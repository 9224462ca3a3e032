"""Reads of many tensors before each step."""
