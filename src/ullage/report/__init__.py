"""Renders results as text, JSON document or HTML page; computes nothing."""
