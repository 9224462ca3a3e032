"""Measure what the front costs: seconds a request, and memory with 1,000 streams at once.

    python -m benchmarks.front.load [--router VENV]

Writes docs/results/front.md. Stub engine, front and client are processes of their own on the
same cores. With the environment of a vllm-router (pip install vllm-router), that stands beside the
front in the same run: its requests take turns with the front's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from subprocess import Popen

from benchmarks.front.client import Connection, Timing
from benchmarks.front.parts import PARTS, front_in_parts
from benchmarks.front.processes import (
    front,
    processor_s,
    resident_kib,
    stub,
    vllm_router,
    write_front,
)
from benchmarks.provenance import made_by
from benchmarks.results import publish

KEY, HEAVY_KEY = "load" * 8, "heavy" * 8
PROMPT = "word " * 200
STREAMS = 1000
STUB = (20_000, 0.001, 2048, "--prompt-token", "0")
STREAM_TOKENS = 20
WARM = 50
DIRECT, FRONT = "to the engine itself", "through the front"
ROUTERS = {
    "through vllm-router": (),
    "through vllm-router, round robin": ("--policy", "round_robin"),
}
HEAVY = 6  # bodies at once, of 2.6 million empty lists each
TABLE = "|---|---|---|---|"


def quantile(values: Sequence[float], share: float) -> float:
    """Of so many values, the one that a share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def alternate(ports: Mapping[str, int], count: int) -> dict[str, list[float]]:
    """Seconds of requests of one token, by turns to each port."""
    connections = {name: Connection(port, KEY) for name, port in ports.items()}
    fields = {"prompt": PROMPT, "max_tokens": 1, "stream": True}
    times: dict[str, list[float]] = {name: [] for name in ports}
    for _ in range(count):
        for name, connection in connections.items():
            timing = await connection.ask(fields)
            if timing.status != 200:
                raise RuntimeError(f"{name}: status {timing.status}")
            times[name].append(timing.last_s - timing.sent_s)
    for connection in connections.values():
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


async def beside_heavy(port: int, count: int) -> tuple[list[float], list[float], list[int]]:
    """Seconds of a light tenant's requests, alone and beside heavy bodies of another, and the
    statuses of those.
    """
    alone = (await alternate({FRONT: port}, count))[FRONT]
    client = f"from benchmarks.front.load import send_heavy; send_heavy({port})"
    command = [sys.executable, "-c", client]
    with Popen(command, stdout=subprocess.PIPE) as sender:
        assert sender.stdout is not None, "it is a pipe"
        await asyncio.to_thread(sender.stdout.readline)  # it has begun
        beside: list[float] = []
        while sender.poll() is None:
            beside += (await alternate({FRONT: port}, 1))[FRONT]
        statuses = json.loads(sender.stdout.read())
    return alone, beside, statuses


def send_heavy(port: int) -> None:
    """Sends heavy bodies all at once, and prints the statuses of the answers."""
    text = [[] for _ in range(2_600_000)]

    async def send() -> None:
        connections = [Connection(port, HEAVY_KEY) for _ in range(HEAVY)]
        fields = {"prompt": "x", "max_tokens": 1, "metadata": text}
        print("begun", flush=True)
        timings = await asyncio.gather(*(each.ask(fields) for each in connections))
        print([timing.status for timing in timings])

    asyncio.run(send())


def check(timings: Sequence[Timing]) -> None:
    """Raises where a stream was not answered in full."""
    short = [each for each in timings if each.status != 200 or each.events != STREAM_TOKENS]
    if short:
        raise RuntimeError(f"{len(short)} of {len(timings)} streams are not whole: {short[0]}")


def configure(folder: Path, engine: int) -> int:
    """Writes the front's configuration; gives its port."""
    port = write_front(
        folder, [engine], 20_000, ["heavy", "load"], max_requests=2048,
        engine_more="prefill_in_flight = 1000000\nmetrics = false\n",
    )  # fmt: skip
    # A tenant's queue holds 256 by default; here 1,000 come at the same moment.
    path = folder / "ullage.toml"
    path.write_text(path.read_text() + "max_queue = 2000\n")
    return port


def main() -> None:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--router", type=Path, metavar="VENV", help="environment of vllm-router")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engine = stack.enter_context(stub(*STUB))
        port = configure(folder, engine)
        ports, processes = {DIRECT: engine, FRONT: port}, {}
        with front(folder, port) as processes[FRONT]:
            with ExitStack() as inner:
                for name, more in ROUTERS.items() if options.router is not None else ():
                    router = vllm_router(options.router, engine, *more)
                    ports[name], processes[name] = inner.enter_context(router)
                asyncio.run(alternate(ports, WARM))
                before_s = {name: processor_s(each) for name, each in processes.items()}
                times = asyncio.run(alternate(ports, options.requests))
                each_ms = {
                    name: 1000 * (processor_s(each) - before_s[name]) / options.requests
                    for name, each in processes.items()
                }
            heavy = asyncio.run(beside_heavy(port, 300))
            rows = asyncio.run(stream_many(port, options.rounds, processes[FRONT]))
        with front_in_parts(folder, port) as parts:
            asyncio.run(alternate({FRONT: port}, options.requests))
    write(times, each_ms, parts, heavy, rows)


def write(
    times: Mapping[str, Sequence[float]], each_ms: Mapping[str, float], parts: Mapping[str, float],
    heavy: tuple[Sequence[float], Sequence[float], Sequence[int]],
    rows: Sequence[tuple[float, int]],
) -> None:  # fmt: skip
    """Writes the page."""
    shares = (0.5, 0.9, 0.99)
    count = len(times[DIRECT])
    added_ms = {
        name: [1000 * (a - b) for a, b in zip(values, times[DIRECT], strict=True)]
        for name, values in times.items()
        if name != DIRECT
    }
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
            f"{count:,} requests with {len(PROMPT):,} characters and one token, one after the "
            "other, by turns to the engine itself, through the front, and through vllm-router, a "
            "router in Rust with one worker, which admits nothing: with its defaults, by which it "
            "keeps a tree of prompts to find those that share a prefix, and with round robin:"
        ),
        "",
        "| whole request, ms | p50 | p90 | p99 |",
        TABLE,
        *(row(name, [1000 * each for each in values], shares) for name, values in times.items()),
        *(row(f"added {name}", values, shares) for name, values in added_ms.items()),
        "",
        *(f"The processor time {name} is {value:.3f} ms a request." for name, value in
          each_ms.items()),
        "",
        *compare(each_ms, added_ms),
        "",
        "Where the front's processor time goes, by samples of the function that runs:",
        "",
        "| part | share | ms |",
        "|---|---|---|",
        *(
            f"| {part} | {100 * parts.get(part, 0):.0f} % | "
            f"{parts.get(part, 0) * each_ms[FRONT]:.3f} |"
            for part in PARTS
        ),
        "",
        (
            f"Beside {HEAVY} bodies of 7.8 MB at once from another tenant, each of 2.6 million "
            f"empty lists (answered with {', '.join(map(str, sorted({*heavy[2]})))}), requests of "
            f"a light tenant take {1000 * quantile(heavy[1], 0.95):.1f} ms at the 95th percentile "
            f"of {len(heavy[1])}; alone, {1000 * quantile(heavy[0], 0.95):.1f} ms."
        ),
        "",
        (
            f"{STREAMS:,} streams of {STREAM_TOKENS} tokens at once, {len(rows)} times "
            f"in a row; all {STREAMS * len(rows):,} were answered in full:"
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
    ]  # fmt: skip
    publish("front-load", "\n".join(lines))
    print("\n".join(lines))


def row(name: str, values: Sequence[float], shares: Sequence[float]) -> str:
    """A row of quantiles."""
    return f"| {name} | {' | '.join(f'{quantile(values, share):.2f}' for share in shares)} |"


def compare(each_ms: Mapping[str, float], added_ms: Mapping[str, Sequence[float]]) -> list[str]:
    """The front's figures over those of the routers."""
    lines = [
        f"| {name} | {each_ms[FRONT] / each_ms[name]:.2f} | "
        f"{median(added_ms[FRONT]) / median(added_ms[name]):.2f} |"
        for name in ROUTERS
        if name in each_ms
    ]
    if not lines:
        return ["vllm-router was not measured: its environment was not given (`--router VENV`)."]
    return ["| the front's over those | processor time | added p50 |", "|---|---|---|", *lines]


if __name__ == "__main__":
    main()
