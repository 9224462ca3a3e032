"""Which alerts are raised, and what came before, for whoever shows them beside the samples.

    board = Board(rules)
    for sample in board.follow(samples):
        print(board.alerts.active)

Nobody is notified: that is what `ullage watch --alerts` does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ullage.operate.watch.alerts.engine import Engine
from ullage.operate.watch.alerts.event import Event
from ullage.operate.watch.alerts.rule import Rule
from ullage.operate.watch.sample import Sample

_MAX_EVENTS: Final = 200


@dataclass(frozen=True, slots=True)
class Alerts:
    """The incidents that are not over, and the latest events; both newest first."""

    active: tuple[Event, ...] = ()
    events: tuple[Event, ...] = ()


class Board:
    """Keeps what the rules say; `alerts` may be read by another thread than the one that takes.

    Args:
        rules: with different names.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._engine = Engine(rules)
        self._events: deque[Event] = deque(maxlen=_MAX_EVENTS)
        self.alerts = Alerts()

    def take(self, sample: Sample) -> Alerts:
        """Takes the next sample."""
        events = self._engine.take(sample)
        if events:
            self._events.extendleft(events)
            active = sorted(self._engine.raised, key=lambda event: -event.since_s)
            self.alerts = Alerts(tuple(active), tuple(self._events))
        return self.alerts

    def follow(self, stream: Iterator[Sample]) -> Iterator[Sample]:
        """The same samples, each after it was taken."""
        for sample in stream:
            self.take(sample)
            yield sample
