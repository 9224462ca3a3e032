"""Measure what the front costs: seconds a request, and memory with 1,000 streams at once.

    python -m benchmarks.front.load

Writes docs/results/front-load.md. Stub engine, front and client are processes of their own on the
same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from subprocess import Popen

from benchmarks.front.client import Connection, Timing
from benchmarks.front.processes import front, processor_s, resident_kib, stub, write_front
from benchmarks.provenance import made_by

PAGE = Path(__file__).parents[2] / "docs" / "results" / "front-load.md"
KEY = "load" * 8
PROMPT = "word " * 200
STREAMS = 1000
STUB = (20_000, 0.001, 2048, "--prompt-token", "0")
STREAM_TOKENS = 20


def quantile(values: Sequence[float], share: float) -> float:
    """Of so many values, the one that a share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def alternate(direct: int, through: int, count: int) -> tuple[list[float], list[float]]:
    """Seconds of requests of one token, by turns to the engine itself and through the front."""
    connections = Connection(direct, KEY), Connection(through, KEY)
    fields = {"prompt": PROMPT, "max_tokens": 1, "stream": True}
    times: tuple[list[float], list[float]] = [], []
    for number in range(count + 50):
        for connection, values in zip(connections, times, strict=True):
            timing = await connection.ask(fields)
            if timing.status != 200:
                raise RuntimeError(f"status {timing.status}")
            if number >= 50:
                values.append(timing.last_s - timing.sent_s)
    for connection in connections:
        await connection.close()
    return times


async def stream_many(port: int, rounds: int, process: Popen[bytes]) -> list[tuple[float, int]]:
    """Rounds of 1,000 streams at once; seconds and resident KiB after each."""
    connections = [Connection(port, KEY) for _ in range(STREAMS)]
    fields = {"prompt": "word " * 20, "max_tokens": STREAM_TOKENS, "stream": True}
    rows = []
    for _ in range(rounds):
        timings = await asyncio.gather(*(each.ask(fields) for each in connections))
        check(timings)
        took_s = max(each.last_s for each in timings) - min(each.sent_s for each in timings)
        rows.append((took_s, resident_kib(process)))
        for connection in connections:
            await connection.close()
    return rows


def check(timings: Sequence[Timing]) -> None:
    """Raises where a stream was not answered in full."""
    short = [each for each in timings if each.status != 200 or each.events != STREAM_TOKENS]
    if short:
        raise RuntimeError(f"{len(short)} of {len(timings)} streams are not whole: {short[0]}")


def main() -> None:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, stub(*STUB) as engine:
        folder = Path(scratch)
        port = write_front(
            folder, [engine], 20_000, ["load"], max_requests=2048,
            engine_more="prefill_in_flight = 1000000\nmetrics = false\n",
        )  # fmt: skip
        # A tenant's queue holds 256 by default; here 1,000 come at the same moment.
        path = folder / "ullage.toml"
        path.write_text(path.read_text() + "max_queue = 2000\n")
        with front(folder, port) as process:
            before_s = processor_s(process)
            direct, through = asyncio.run(alternate(engine, port, options.requests))
            each_ms = 1000 * (processor_s(process) - before_s) / (options.requests + 50)
            rows = asyncio.run(stream_many(port, options.rounds, process))
    write(direct, through, each_ms, rows)


def write(
    direct: Sequence[float], through: Sequence[float], each_ms: float,
    rows: Sequence[tuple[float, int]],
) -> None:  # fmt: skip
    """Writes the page."""
    added = [1000 * (a - b) for a, b in zip(through, direct, strict=True)]
    shares = (0.5, 0.9, 0.99)
    lines = [
        "# What `ullage front` costs",
        "",
        made_by("benchmarks.front.load"),
        "",
        (
            "A stub engine, the front and the client are processes of their own and "
            "share the cores; a step of the engine takes a millisecond. "
            f"The load of the machine, other programs included, was {os.getloadavg()[0]:.1f} on "
            f"{os.cpu_count()} cores. The goal is 2 ms at the 99th percentile."
        ),
        "",
        (
            f"{len(direct):,} requests with {len(PROMPT):,} characters and one token, "
            "one after the "
            "other, by turns to the engine itself and through the front:"
        ),
        "",
        "| whole request, ms | p50 | p90 | p99 |",
        "|---|---|---|---|",
        *(
            f"| {name} | {' | '.join(f'{1000 * quantile(values, each):.2f}' for each in shares)} |"
            for name, values in (("to the engine itself", direct), ("through the front", through))
        ),
        "| difference of the percentiles | "
        + " | ".join(
            f"{1000 * (quantile(through, each) - quantile(direct, each)):.2f}" for each in shares
        )
        + " |",
        "| difference of the two of a turn | "
        + " | ".join(f"{quantile(added, each):.2f}" for each in shares)
        + " |",
        "",
        f"The front's processor takes {each_ms:.2f} ms for such a request.",
        "",
        (
            f"{STREAMS:,} streams of {STREAM_TOKENS} tokens at once, {len(rows)} times "
            "in a row; all "
            f"{STREAMS * len(rows):,} were answered in full:"
        ),
        "",
        "| round | seconds | front's memory, MiB |",
        "|---|---|---|",
        *(
            f"| {number} | {took_s:.1f} | {kib / 1024:.1f} |"
            for number, (took_s, kib) in enumerate(rows, start=1)
            if number in (1, 2, 3, 5, 10, 15, 20) or number == len(rows)
        ),
        "",
    ]
    PAGE.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
