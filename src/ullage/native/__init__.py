"""Builds the C parts, and locates their libraries."""
