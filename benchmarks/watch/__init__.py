"""Courses of samples that programs on the phantom made, for the alert rules."""
