"""What the follower does not understand it leaves unknown: its own errors never reach the program.

guard.run(op, beside.read_inputs, op, args) -> the result, or None where that raised
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ullage.record.weights.deferred_storage import TooLargeToReadError


class Guard:
    """Runs the follower's own code."""

    def __init__(self, note: Callable[[str, int, str], None]) -> None:
        """`note(what, num_bytes, assumption)` lists an assumption with its place."""
        self._note = note

    def run(self, op: Any, function: Callable[..., Any], *args: Any) -> Any:
        """The result of a function; None where it raised, which is counted."""
        try:
            return function(*args)
        except TooLargeToReadError:
            raise  # it is for the user
        except Exception as error:  # whatever a tensor of a kind that is not known here raises
            self._note(f"{op} not followed", 0, f"unknown ({type(error).__name__})")
            return None
