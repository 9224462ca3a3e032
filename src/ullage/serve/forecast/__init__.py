"""Forecasts what a server's cache does to requests, without the engine: counts of blocks alone."""
