"""Servers of models: their logs, and the search for one."""
