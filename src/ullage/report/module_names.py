"""The names of modules in reports."""

from __future__ import annotations

OUTSIDE = "outside of all modules"
ITSELF = "the model itself"
ITSELF_OR_OUTSIDE = "the model itself, or no module"


def name_module(path: str | None) -> str:
    """Names a module by its path; the outermost module, whose path is empty, gets a name."""
    if path is None:
        return OUTSIDE
    return path or ITSELF


def name_timed_module(path: str) -> str:
    """Names a module of the clock's: work of the outermost module and of none has no path."""
    return path or ITSELF_OR_OUTSIDE
