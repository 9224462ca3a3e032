"""The JSON document of `ullage watch --replay FILE --alerts`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ullage.watch.alerts.event import Event
    from ullage.watch.alerts.rules_file import Settings


class Replayed(Protocol):
    """The result of the rules on a recording (see api/alerts.py)."""

    @property
    def events(self) -> tuple[Event, ...]:
        """In order of time."""

    @property
    def raised(self) -> tuple[Event, ...]:
        """The alerts of incidents that are not over."""

    @property
    def first_s(self) -> float:
        """The time of the first sample."""

    @property
    def last_s(self) -> float:
        """The time of the last sample."""

    @property
    def num_samples(self) -> int:
        """The number of samples."""

    @property
    def settings(self) -> Settings:
        """The rules."""


def alerts_document(replayed: Replayed) -> dict[str, Any]:
    """The events (each of schema "ullage.alert/1"), and the incidents that are not over."""
    return {
        "schema": "ullage.alerts/1",
        "first_s": replayed.first_s,
        "last_s": replayed.last_s,
        "num_samples": replayed.num_samples,
        "rules": [rule.name for rule in replayed.settings.rules],
        "events": [event.document for event in replayed.events],
        "raised": [event.incident for event in replayed.raised],
    }
