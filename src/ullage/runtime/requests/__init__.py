"""Requests to a model, answered again under a leaner cache."""
