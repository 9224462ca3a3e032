"""Waits in many ways, all in one run; its last line is JSON: for each way, how long it took by
time.monotonic and by time.perf_counter, and what came of it.

The way `rank` is one of a distributed job: it waits for collectives, with a time limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

WAIT_S = 0.2
LONG_S = 60.0
SIZE = 4096


def work() -> torch.cuda.Event:
    """Gives the device work that it needs some milliseconds for."""
    values = torch.randn(SIZE, SIZE, device="cuda")
    for _ in range(20):
        values = values @ values
    return torch.cuda.current_stream().record_event()


def synchronize() -> bool:
    work().synchronize()
    return True


def poll_events() -> bool:
    """With a limit, as a server has."""
    event, deadline = work(), time.perf_counter() + LONG_S
    while not event.query():
        if time.perf_counter() > deadline:
            return False
    return True


def poll_and_sleep() -> bool:
    stream = torch.cuda.current_stream()
    work()
    deadline = time.time() + LONG_S
    while not stream.query():
        time.sleep(0.001)
        if time.time() > deadline:
            return False
    return True


def poll_in_a_thread() -> bool:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(poll_events).result(LONG_S)


def sleep() -> bool:
    time.sleep(WAIT_S)
    return True


def monotonic() -> bool:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        work()
    return True


def perf_counter() -> bool:
    deadline = time.perf_counter() + WAIT_S
    while time.perf_counter() < deadline:
        pass
    return True


def condition() -> bool:
    waiting = threading.Condition()
    with waiting:
        return not waiting.wait(WAIT_S)


def condition_for() -> bool:
    waiting = threading.Condition()
    with waiting:
        return not waiting.wait_for(lambda: False, WAIT_S)


def empty_queue() -> bool:
    try:
        queue.Queue().get(timeout=WAIT_S)
    except queue.Empty:
        return True
    return False


def event_loop() -> bool:
    async def wait() -> bool:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), WAIT_S)
            return False
        return True

    return asyncio.run(wait())


def child() -> bool:
    try:
        subprocess.run(["sleep", str(LONG_S)], timeout=WAIT_S, check=False)
    except subprocess.TimeoutExpired:
        return True
    return False


def selected() -> bool:
    return select.select([], [], [], WAIT_S) == ([], [], [])


def alarm() -> bool:
    rings: list[int] = []
    previous = signal.signal(signal.SIGALRM, lambda number, _frame: rings.append(number))
    signal.setitimer(signal.ITIMER_REAL, WAIT_S)
    while not rings:
        work()
    signal.signal(signal.SIGALRM, previous)
    return True


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    """Each takes a while to load."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(WAIT_S / 8)
        return torch.full((SIZE,), float(index))


def loader() -> bool:
    """Workers that sleep, beside work of the device."""
    loaded = torch.utils.data.DataLoader(Numbers(), num_workers=1, timeout=LONG_S)
    return sum(int(work() is not None and len(batch)) for batch in loaded) == len(Numbers())


def rank() -> bool:
    dist.init_process_group("nccl", timeout=timedelta(seconds=5))
    values = torch.ones(SIZE, device="cuda")
    for _ in range(8):
        work()
        dist.all_reduce(values, async_op=True).wait()
        time.sleep(0.1)
    dist.barrier()
    time.sleep(1)  # a watchdog looks in between
    dist.destroy_process_group()
    return True


WAYS: tuple[Callable[[], bool], ...] = (
    synchronize, poll_events, poll_and_sleep, poll_in_a_thread, sleep, monotonic, perf_counter,
    condition, condition_for, empty_queue, event_loop, child, selected, alarm, loader,
)  # fmt: skip


def measure(way: Callable[[], bool]) -> dict[str, Any]:
    torch.cuda.synchronize()
    monotonic_s, perf_counter_s = time.monotonic(), time.perf_counter()
    is_done = way()
    torch.cuda.synchronize()
    return {
        "is_done": is_done,
        "monotonic_s": time.monotonic() - monotonic_s,
        "perf_counter_s": time.perf_counter() - perf_counter_s,
    }


def main() -> None:
    """Waits in each way, or as a rank."""
    ways = (rank,) if sys.argv[1:] == ["rank"] else WAYS
    print(json.dumps({way.__name__: measure(way) for way in ways}))


if __name__ == "__main__":
    main()
