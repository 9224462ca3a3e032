"""Hands events to sinks without ever waiting for one: each sink has a thread and a short queue.

    with Delivery({"slack": sink}, on_problem=print) as delivery:
        delivery.hand(event)

An event that finds the queue full is dropped, and said to be. At the end what is queued has some
seconds to be delivered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from queue import Empty, Full, Queue
from typing import Final

from ullage.operate.watch.alerts.event import Event
from ullage.operate.watch.alerts.sinks.sink import Sink, SinkError

_MAX_QUEUED: Final = 256
_END_S: Final = 10.0


class Delivery:
    """Threads that deliver.

    Args:
        sinks: by name.
        on_problem: is told of what could not be delivered; called in any of the threads.
        end_s: how long the end waits for what is queued.
    """

    def __init__(
        self, sinks: Mapping[str, Sink], on_problem: Callable[[str], None], end_s: float = _END_S
    ) -> None:
        self._on_problem = on_problem
        self._end_s = end_s
        self._queues: dict[str, Queue[Event | None]] = {name: Queue(_MAX_QUEUED) for name in sinks}
        self._threads = [
            threading.Thread(target=self._work, args=(name, sink), daemon=True)
            for name, sink in sinks.items()
        ]
        for thread in self._threads:
            thread.start()

    def hand(self, event: Event, name: str) -> None:
        """Queues an event for a sink; returns at once."""
        try:
            self._queues[name].put_nowait(event)
        except Full:
            self._on_problem(f"{name}: {_MAX_QUEUED} events wait there; one more was dropped")

    def _work(self, name: str, sink: Sink) -> None:
        while (event := self._queues[name].get()) is not None:
            try:
                sink.send(event)
            except SinkError as error:
                self._on_problem(f"{name}: {event.change.value} {event.rule.name}: {error}")
            except Exception as error:  # a defect must not end the thread
                self._on_problem(f"{name}: {type(error).__name__} while sending")

    def __enter__(self) -> Delivery:
        return self

    def __exit__(self, *_: object) -> None:
        due_s = time.monotonic() + self._end_s
        for queue in self._queues.values():
            while queue.full() and time.monotonic() < due_s:
                time.sleep(0.01)
            try:
                queue.put_nowait(None)
            except Full:
                continue
        for thread in self._threads:
            thread.join(max(due_s - time.monotonic(), 0.0))
        for name, queue in self._queues.items():
            left = _drain(queue)
            if left:
                self._on_problem(f"{name}: {left} events were not delivered in {self._end_s:g} s")


def _drain(queue: Queue[Event | None]) -> int:
    count = 0
    while True:
        try:
            count += queue.get_nowait() is not None
        except Empty:
            return count
