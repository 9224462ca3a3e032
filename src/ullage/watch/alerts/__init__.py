"""Alerts: rules over samples, their incidents, and where these are reported."""
