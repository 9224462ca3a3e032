"""Servers of models: their logs, forecasts of their caches, and the search for one."""
