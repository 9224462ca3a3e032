"""What modules are called in reports."""

from __future__ import annotations

OUTSIDE = "outside of all modules"
ITSELF = "the model itself"


def name_module(path: str | None) -> str:
    """A module's path for people, who have nothing to call the outermost one by."""
    if path is None:
        return OUTSIDE
    return path or ITSELF
