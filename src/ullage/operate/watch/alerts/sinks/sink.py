"""Sinks of events. A sink may take its time: each has a thread of its own (delivery.py)."""

from __future__ import annotations

from typing import Protocol

from ullage.operate.watch.alerts.event import Event


class SinkError(Exception):
    """An event could not be delivered; the message holds no secret of the address."""


class Sink(Protocol):
    """The receiver of events."""

    def send(self, event: Event) -> None:
        """Delivers an event.

        Raises:
            SinkError: it could not be delivered, after all attempts.
        """
