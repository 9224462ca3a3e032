"""The version of ullage."""

__version__ = "0.1.0"
