"""Blocks that another stream uses, in rounds: `streams.py CASE [ROUNDS]`.

Each round takes a block of 64 MiB, lets another stream work on it, says so (record_stream) and lets
go of it; the cases differ in what the host waits for. Prints what is reserved in such blocks.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

BLOCK = 64 << 20
PINNED = 4 << 20


def take() -> torch.Tensor:
    return torch.empty(BLOCK, dtype=torch.uint8, device="cuda")


def use(block: torch.Tensor, stream: torch.cuda.Stream) -> None:
    """Work on another stream, after what the current one has done to the block."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        block.add_(1)
    block.record_stream(stream)


class Rounds:
    """What happens in a round, by case."""

    def __init__(self) -> None:
        self.side, self.other = torch.cuda.Stream(), torch.cuda.Stream()
        self.host = torch.ones(1, device="cuda")
        self.polls: list[int] = []
        self.seen: list[Any] = []

    def nothing_waits(self) -> None:
        use(take(), self.side)

    def device_synchronize(self) -> None:
        use(take(), self.side)
        torch.cuda.synchronize()

    def stream_synchronize(self) -> None:
        use(take(), self.side)
        self.side.synchronize()

    def another_stream_synchronize(self) -> None:
        use(take(), self.side)
        self.other.synchronize()

    def event_synchronize(self) -> None:
        use(take(), self.side)
        self.side.record_event().synchronize()

    def event_before(self) -> None:
        event = self.side.record_event()
        use(take(), self.side)
        event.synchronize()

    def main_waits_and_reads(self) -> None:
        use(take(), self.side)
        torch.cuda.current_stream().wait_stream(self.side)
        self.host.item()

    def main_reads(self) -> None:
        use(take(), self.side)
        self.host.item()

    def chain(self) -> None:
        """The other stream waits for the first, and the host for the other."""
        use(take(), self.side)
        self.other.wait_event(self.side.record_event())
        self.other.record_event().synchronize()

    def poll(self) -> None:
        use(take(), self.side)
        event, polls = self.side.record_event(), 0
        while not event.query():
            polls += 1
        self.polls.append(polls)

    def idle_stream(self) -> None:
        """Said to be used by a stream that never got any work."""
        take().record_stream(self.other)

    def looks_on(self) -> None:
        """A thread that has nothing to do with the device is told that all is done."""
        use(take(), self.side)
        event = self.side.record_event()
        mine = event.query()
        thread = threading.Thread(target=lambda: self.seen.append([mine, event.query()]))
        thread.start()
        thread.join()
        self.seen[-1].append(event.query())

    def asks(self) -> None:
        """What streams and events answer, before and after the host has waited."""
        use(take(), self.side)
        event, never = self.side.record_event(), torch.cuda.Event()
        before = [event.query(), self.side.query(), self.other.query(), never.query()]
        self.side.synchronize()
        self.seen.append([before, [event.query(), self.side.query()]])

    def measures_time(self) -> None:
        """Without waiting: what is right on a GPU that is fast enough."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        use(take(), self.side)
        end.record()
        self.seen.append(begin.elapsed_time(end))

    def pinned(self) -> None:
        """What is being copied out of cannot be reused yet."""
        torch.empty(PINNED, dtype=torch.uint8, pin_memory=True).to("cuda", non_blocking=True)

    def pinned_synchronize(self) -> None:
        self.pinned()
        torch.cuda.synchronize()

    def to_pageable(self) -> None:
        """A copy to memory that is not pinned returns when it is done, whatever was asked for."""
        use(take(), self.side)
        with torch.cuda.stream(self.side):
            torch.empty(1).copy_(self.host, non_blocking=True)


class Prefetcher:
    """The next batch is copied on a stream of its own while the current one is worked on."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self.batch = torch.ones(BLOCK, dtype=torch.uint8)
        self.preload()

    def preload(self) -> None:
        with torch.cuda.stream(self.stream):
            self.next = self.batch.to("cuda", non_blocking=True)

    def take(self) -> torch.Tensor:
        torch.cuda.current_stream().wait_stream(self.stream)
        batch = self.next
        batch.record_stream(torch.cuda.current_stream())
        self.preload()
        return batch


def prefetch(rounds: int, *, reads: bool) -> None:
    prefetcher, loss = Prefetcher(), torch.zeros(1, device="cuda")
    for _ in range(rounds):
        batch = prefetcher.take()
        batch.add_(1)
        if reads:
            loss.item()
        del batch


def main(case: str, rounds: int = 4) -> None:
    state = Rounds()
    if case.startswith("prefetch"):
        prefetch(rounds, reads=case == "prefetch_and_read")
    else:
        run: Callable[[], None] = getattr(state, case)
        for _ in range(rounds):
            run()
    found = {
        "blocks": torch.cuda.memory_reserved() // BLOCK,
        "retries": torch.cuda.memory_stats()["num_alloc_retries"],
        "polls": state.polls,
        "seen": state.seen,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
