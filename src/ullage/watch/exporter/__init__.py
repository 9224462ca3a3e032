"""Samples as metrics for Prometheus: their names, the page, and the server that answers scrapes."""
