"""The exporter's points for OpenTelemetry: their names there, and what pushes them over
OTLP/HTTP.
"""
