"""Runs in the user's interpreter, on the phantom: makes the requests of files to torch's own
allocator, once under each of several settings, and writes how much memory it reserved. For settings
and versions that ullage's own form of its rules does not know, and for the test of that form.

The script imports the standard library and torch, and nothing of ullage. It imports torch once and
forks a process for each replay, because an allocator reads its settings only once. It records
nothing and makes no tensors, so the allocator gets these requests and no others.

    python allocator_replay.py ORDERS RESULTS

ORDERS is a JSON list of objects (see `_replay`). RESULTS gets a line of JSON for each.

A file of requests has a line of JSON (the length of each column), then the columns as int64 in the
machine's byte order. `sizes` and `streams` (an index: 0 is the default stream) have one entry per
block. The others are sequences of operations. With n blocks:

    0 <= op < n     allocate block op
    n <= op < 2n    free block op - n
    op < 0          -op = kind + 8 * argument:
                    EMPTY_CACHE: torch.cuda.empty_cache(); RETRY: the allocator released its cache
                    to make room; ATTEMPT: allocate `argument` bytes and free them; POOL: allocate
                    the following blocks in this private pool, 0 for none; DROP_POOL: delete it
"""

from __future__ import annotations

import gc
import json
import os
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

EMPTY_CACHE, RETRY, ATTEMPT, POOL, DROP_POOL = 1, 2, 3, 4, 5
_CONF = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def main(orders: str, results: str) -> None:
    """Runs the replays, as many at once as there are processors."""
    gc.disable()  # there are no reference cycles, and a collection would copy pages in each fork
    import torch

    pending = json.loads(Path(orders).read_text(encoding="utf-8"))
    columns = {path: read_columns(path) for path in {order["requests"] for order in pending}}
    running = 0
    for order in pending:
        if running >= len(os.sched_getaffinity(0)):
            os.wait()
            running -= 1
        if os.fork() == 0:
            os.environ.pop("ULLAGE_RUN_DIR", None)  # each has a device to itself
            _write(
                results,
                {
                    "number": order["number"],
                    **_try_replay(torch, columns[order["requests"]], order),
                },
            )
            os._exit(0)
        running += 1
    while running:
        os.wait()
        running -= 1


def read_columns(path: str) -> dict[str, list[int]]:
    """Reads the columns of a file, by their names."""
    with Path(path).open("rb") as file:
        lengths: dict[str, int] = json.loads(file.readline())
        columns = {}
        for name, length in lengths.items():
            column = array("q")
            column.fromfile(file, length)
            columns[name] = column.tolist()
    return columns


def _write(path: str, result: dict[str, Any]) -> None:
    """Appends a line in one write, so that lines of several processes do not mix."""
    line = json.dumps(result).encode() + b"\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    while line:
        line = line[os.write(file, line) :]
    os.close(file)


def _try_replay(
    torch: ModuleType, columns: dict[str, list[int]], order: dict[str, Any]
) -> dict[str, Any]:
    try:
        return _replay(torch, columns, order)
    except Exception as error:
        return {"error": str(error).strip().splitlines()[0] if str(error) else repr(error)}


def _replay(
    torch: ModuleType, columns: dict[str, list[int]], order: dict[str, Any]
) -> dict[str, Any]:
    """One replay.

    order: "requests" (the file), "settings" (what the environment variable is set to), "device"
        (what the phantom plays), "platform" (whose order its addresses have),
        "fraction" (of set_per_process_memory_fraction, or null), "before" (the column of what is
        allocated first), "ignored" (the kinds of operations that are left out).
    """
    os.environ.update(dict.fromkeys(_CONF, order["settings"]))
    os.environ["ULLAGE_DEVICE"] = order["device"]
    os.environ["ULLAGE_PLATFORM"] = order["platform"]
    torch.cuda.init()
    if order["fraction"] is not None:
        torch.cuda.set_per_process_memory_fraction(order["fraction"])
    player = _Player(torch, columns, set(order["ignored"]))
    stopped_at = player.play(columns[order["before"]])
    if stopped_at is not None:
        return _result(torch, player, -1)
    torch.cuda.reset_peak_memory_stats()
    return _result(torch, player, player.play(columns["ops"]))


class _Player:
    """Makes the requests to the allocator, and keeps the allocated blocks."""

    def __init__(self, torch: ModuleType, columns: dict[str, list[int]], ignored: set[int]) -> None:
        self._torch = torch
        self._sizes = columns["sizes"]
        handles = _streams(torch, max(columns["streams"], default=0) + 1)
        self._streams = [handles[index] for index in columns["streams"]]
        self._pointers = [0] * len(self._sizes)
        self._ignored = ignored
        self._pools: dict[int, Any] = {}
        self._active: Any = None
        self.failed_attempts = 0

    def play(self, ops: list[int]) -> int | None:
        """Executes the operations; returns the number of one that ran out of memory, or None."""
        sizes, streams, pointers = self._sizes, self._streams, self._pointers
        count = len(sizes)
        allocate: Callable[[int, int], int] = self._torch._C._cuda_cudaCachingAllocator_raw_alloc
        free: Callable[[int], None] = self._torch._C._cuda_cudaCachingAllocator_raw_delete
        number = 0
        try:
            for number, op in enumerate(ops):  # noqa: B007 - returned if memory runs out
                if op >= count:
                    free(pointers[op - count])
                elif op >= 0:
                    pointers[op] = allocate(sizes[op], streams[op])
                else:
                    self._do_other(-op & 7, -op >> 3)
        except self._torch.OutOfMemoryError:
            return number
        return None

    def _do_other(self, kind: int, argument: int) -> None:
        if kind in self._ignored:
            return
        if kind in (EMPTY_CACHE, RETRY):
            self._torch.cuda.empty_cache()
        elif kind == ATTEMPT:
            self._attempt(argument)
        elif kind == POOL:
            self._enter_pool(argument)
        elif kind == DROP_POOL:
            self._enter_pool(0)
            self._pools.pop(argument, None)
            self._torch.cuda.empty_cache()

    def _attempt(self, size: int) -> None:
        """Repeats a request that failed in the recording; if it succeeds, frees the block."""
        call = self._torch._C
        try:
            call._cuda_cudaCachingAllocator_raw_delete(
                call._cuda_cudaCachingAllocator_raw_alloc(size, 0)
            )
        except self._torch.OutOfMemoryError:
            self.failed_attempts += 1

    def _enter_pool(self, pool: int) -> None:
        """Allocates the following blocks in a private pool; 0 means the default pool."""
        cuda = self._torch.cuda
        if self._active is not None:
            self._active.__exit__(None, None, None)
            self._active = None
        if pool:
            if pool not in self._pools:
                self._pools[pool] = cuda.MemPool()
            self._active = cuda.use_mem_pool(self._pools[pool])
            self._active.__enter__()


def _streams(torch: ModuleType, count: int) -> list[int]:
    """The handles of `count` streams, the default one first; torch has 65 in all."""
    streams = [torch.cuda.Stream(priority=-(i // 32 % 2)) for i in range(count - 1)]
    return [0, *(stream.cuda_stream for stream in streams)]


def _result(torch: ModuleType, player: _Player, stopped_at: int | None) -> dict[str, Any]:
    stats = torch.cuda.memory_stats()
    return {
        "peak_requested_bytes": stats.get("requested_bytes.all.peak", 0),
        "peak_allocated_bytes": stats.get("allocated_bytes.all.peak", 0),
        "peak_reserved_bytes": stats.get("reserved_bytes.all.peak", 0),
        "num_retries": stats.get("num_alloc_retries", 0),
        "num_device_allocs": stats.get("num_device_alloc", 0),
        "segments": sorted(segment["total_size"] for segment in torch.cuda.memory_snapshot()),
        "stopped_at": stopped_at,
        "num_failed_attempts": player.failed_attempts,
    }


if __name__ == "__main__":
    main(*sys.argv[1:3])
