"""What is under way in a guarded script, and what was recovered: of all its models together."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Activity:
    """Whether a guarded call or a backward is under way, for all models of a guard.

    Attributes:
        is_busy: whether one is.
        num_recoveries: calls, backward passes and steps that were completed after an error.
    """

    def __init__(self) -> None:
        self.is_busy = False
        self.num_recoveries = 0
        self._thread = threading.get_ident()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way, on the thread of the script."""
        return not self.is_busy and self._thread == threading.get_ident()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """While something is under way."""
        was_busy, self.is_busy = self.is_busy, True
        try:
            yield
        finally:
            self.is_busy = was_busy
