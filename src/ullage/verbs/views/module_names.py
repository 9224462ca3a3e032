"""The names of modules in reports."""

from __future__ import annotations

OUTSIDE = "outside of all modules"
ITSELF = "the model itself"


def name_module(path: str | None) -> str:
    """Names a module by its path; the outermost module, whose path is empty, gets a name."""
    if path is None:
        return OUTSIDE
    return path or ITSELF


def name_timed_module(path: str) -> str:
    """Names a module of the clock's."""
    from ullage.clock.step_time import NO_MODULE

    return name_module(None if path == NO_MODULE else path)
