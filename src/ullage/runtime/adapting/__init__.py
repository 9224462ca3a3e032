"""Forecasts what the next batch needs, and changes the rung before it fails."""
