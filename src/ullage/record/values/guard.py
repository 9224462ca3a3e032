"""Keeps errors of ullage's own tracking of values from the program; the value stays unknown then.

guard.run(op, beside.read_inputs, op, args) -> the result, or None if it raised an error
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ullage.record.weights.deferred_storage import TooLargeToReadError


class Guard:
    """Runs code of the tracking."""

    def __init__(self, note: Callable[[str, int, str], None]) -> None:
        """`note(what, num_bytes, assumption)` adds an assumption, with its line, to the report."""
        self._note = note

    def run(self, op: Any, function: Callable[..., Any], *args: Any) -> Any:
        """The result of a function; None if it raised an error, which is counted."""
        try:
            return function(*args)
        except TooLargeToReadError:
            raise  # a message for the user
        except Exception as error:  # tensors of unknown kinds may raise anything
            self._note(f"{op} not followed", 0, f"unknown ({type(error).__name__})")
            return None
