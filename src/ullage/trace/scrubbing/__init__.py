"""Snapshots without what is private in them."""
