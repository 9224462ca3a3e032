"""Where samples come from, and at what pace.

    for sample in samples(MachineSource(), interval_s=1.0):
        print(sample.devices[0].used_bytes)

A source answers `read()` with the state of now. Whatever consumes samples (text, page, alerts,
exporter) takes an iterator of them, so that a recording (operate/watch/recording.py) will do as
well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from ullage.operate.watch.sample import Sample


class Source(Protocol):
    """A source that can be read again and again."""

    def read(self) -> Sample:
        """The state of now."""

    def close(self) -> None:
        """Gives back what the source holds."""


def samples(
    source: Source,
    interval_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Sample]:
    """A sample each `interval_s` seconds, without end; the first at once.

    Moments that have passed while the consumer was busy are left out: samples do not queue up.
    """
    due_s = clock()
    while True:
        yield source.read()
        now_s = clock()
        due_s += interval_s
        if due_s <= now_s:
            due_s = now_s + interval_s - (now_s - due_s) % interval_s
        sleep(due_s - now_s)
