"""Run the front for an hour of what can go wrong, and look whether its memory grows.

    python -m benchmarks.front.endurance [--minutes 60]

Writes docs/results/front-endurance.md. Two stub engines stand behind the front; one of them is
killed and started again every two minutes. Clients send whole requests, hang up, read slowly, and
send what is malformed or too large; every ten minutes 1,000 streams come at once. What became of
each request is counted: one that ends without an answer is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.front.client import END
from benchmarks.front.processes import (
    free_port,
    front,
    program,
    read_metric,
    resident_kib,
    stub_arguments,
    write_front,
)
from benchmarks.provenance import made_by

PAGE = Path(__file__).parents[2] / "docs" / "results" / "front-endurance.md"
KEY = "load" * 8
BLOCKS = 6000
STEP_S = 0.02
STREAMS = 1000
BURST_S = 600.0
DOWN_EACH_S, DOWN_S = 120.0, 5.0
SAMPLE_S = 10.0
PATIENCE_S = 180.0
WARM_SHARE = 0.25  # of the time, in which the front may still take memory for the first time
# Requests a second of each kind.
RATES = {"whole": 1.0, "stream": 1.0, "hangs up": 0.5, "reads slowly": 0.05, "malformed": 0.4}
LOST = "lost"


@dataclass(slots=True)
class Journal:
    """What became of requests, by kind; the front's memory in KiB at each second of the run."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    memory: list[tuple[float, int]] = field(default_factory=list)
    num_kills: int = 0


def write_request(fields: str, *, more: str = "") -> bytes:
    """A POST of a completion."""
    body = f'{{"model": "stub", {fields}}}'.encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    )
    return head.encode() + body


PROMPT = f'"prompt": "{"word " * 40}"'
WHOLE = write_request(f'{PROMPT}, "max_tokens": 20')
STREAM = write_request(f'{PROMPT}, "max_tokens": 20, "stream": true')
LONG = write_request(f'{PROMPT}, "max_tokens": 2000, "stream": true')
HOST = b"host: 127.0.0.1\r\n"
LINE = b"POST /v1/completions HTTP/1.1\r\n"
MALFORMED: tuple[bytes, ...] = (
    write_request('"prompt": 5, "max_tokens": 20'),
    write_request('"prompt": "x", "max_tokens": -1'),
    write_request('"prompt": "x", "max_tokens": 99999999'),  # fits no cache
    write_request('"prompt": "x", "priority": 1'),
    write_request(f'"prompt": "{"x" * 2_000_000}", "max_tokens": 5'),  # fits no cache
    write_request(f'"prompt": "{"x" * 9_000_000}", "max_tokens": 5'),  # above max_body
    write_request(PROMPT, more="transfer-encoding: chunked\r\n"),
    write_request(PROMPT, more="x-original-url: /admin\r\n"),
    write_request(PROMPT, more=f"x-long: {'x' * 20_000}\r\n"),
    LINE + HOST + b"content-length: 99999999999\r\n\r\n",
    LINE + b"authorization: Bearer nobody\r\n" + HOST + b"content-length: 2\r\n\r\n{}",
    LINE + HOST + b"x: " + b"x" * 60_000,  # never ends
    b"GET http://elsewhere/ HTTP/1.1\r\n" + HOST + b"\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
)


async def read_answer(reader: asyncio.StreamReader) -> str:
    """What an answer is: its status, and of a stream whether it says that it broke off."""
    head = await reader.readuntil(b"\r\n\r\n")
    status = head.split(b" ", 2)[1].decode()
    if b"content-length:" in head.lower():
        length = head.lower().partition(b"content-length:")[2].split()[0]
        await reader.readexactly(int(length))
        return status
    tail, is_error = b"", False
    while not tail.endswith(END):
        chunk = await reader.read(65536)
        if not chunk:
            return LOST
        is_error = is_error or b'{"error"' in chunk
        tail = (tail + chunk)[-len(END) :]
    return "broke off, and says so" if is_error else status


async def ask(port: int, request: bytes) -> str:
    """One request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(PATIENCE_S):
            return await read_answer(reader)
    except (OSError, asyncio.IncompleteReadError, TimeoutError):
        return LOST
    finally:
        writer.close()


async def hang_up(port: int, request: bytes, after_s: float) -> str:
    """A client that closes its connection after some time."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    await asyncio.sleep(after_s)
    writer.transport.abort()
    return "hung up"


async def read_slowly(port: int) -> str:
    """A client that takes nothing; the front cuts it off, or its answer has ended by itself."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4096)
    writer.write(LONG)
    try:
        await asyncio.sleep(90.0)
        async with asyncio.timeout(PATIENCE_S):
            return await read_answer(reader)
    except (OSError, asyncio.IncompleteReadError):
        return "cut off"
    except TimeoutError:
        return LOST
    finally:
        writer.transport.abort()


def senders(port: int) -> dict[str, Callable[[random.Random], Awaitable[str]]]:
    """How a request of each kind is sent."""
    return {
        "whole": lambda _: ask(port, WHOLE),
        "stream": lambda _: ask(port, STREAM),
        "hangs up": lambda generator: hang_up(port, LONG, generator.random() * 4),
        "reads slowly": lambda _: read_slowly(port),
        "malformed": lambda generator: ask(port, generator.choice(MALFORMED)),
    }


async def send_kind(
    kind: str, send: Callable[[random.Random], Awaitable[str]], until_s: float, journal: Journal
) -> None:
    """A Poisson stream of one kind."""
    generator = random.Random(kind)

    async def one() -> None:
        try:
            journal.outcomes[kind, await send(generator)] += 1
        except OSError:
            journal.outcomes[kind, LOST] += 1

    async with asyncio.TaskGroup() as group:
        while time.monotonic() < until_s:
            await asyncio.sleep(generator.expovariate(RATES[kind]))
            group.create_task(one())


async def send_bursts(port: int, until_s: float, journal: Journal) -> None:
    """1,000 streams at once, again and again."""
    while time.monotonic() < until_s:
        for outcome in await asyncio.gather(*(ask(port, STREAM) for _ in range(STREAMS))):
            journal.outcomes[f"{STREAMS:,} streams at once", outcome] += 1
        await asyncio.sleep(max(0.0, min(BURST_S, until_s - time.monotonic())))


async def kill_engine(port: int, until_s: float, journal: Journal) -> None:
    """An engine that is killed, and comes back after some seconds."""
    while time.monotonic() < until_s:
        process = subprocess.Popen(stub_arguments(port, BLOCKS, STEP_S, STREAMS))
        try:
            await asyncio.sleep(max(1.0, min(DOWN_EACH_S, until_s - time.monotonic())))
        finally:
            process.kill()
            process.wait()
        journal.num_kills += 1
        await asyncio.sleep(DOWN_S)


async def sample(process: subprocess.Popen[bytes], until_s: float, journal: Journal) -> None:
    """The front's memory as time goes by."""
    begin_s = time.monotonic()
    while time.monotonic() < until_s:
        journal.memory.append((time.monotonic() - begin_s, resident_kib(process)))
        await asyncio.sleep(SAMPLE_S)


async def endure(
    port: int, mortal_port: int, process: subprocess.Popen[bytes], duration_s: float
) -> Journal:
    """All of it at once."""
    journal = Journal()
    until_s = time.monotonic() + duration_s
    await asyncio.gather(
        *(send_kind(kind, send, until_s, journal) for kind, send in senders(port).items()),
        send_bursts(port, until_s, journal),
        kill_engine(mortal_port, until_s, journal),
        sample(process, until_s, journal),
    )
    await asyncio.sleep(5.0)
    return journal


@contextlib.contextmanager
def setting(mortal_port: int) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A front before an engine that stays and one that does not; its port and process."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        engine = free_port()
        more = "characters_per_token = 4\nslow_reader_s = 10"
        with program(stub_arguments(engine, BLOCKS, STEP_S, STREAMS)[1:], engine):
            port = write_front(
                folder, [engine, mortal_port], BLOCKS, ["load"], more, max_requests=STREAMS,
                engine_more="prefill_in_flight = 1000000\n",
            )  # fmt: skip
            path = folder / "ullage.toml"
            path.write_text(path.read_text() + "max_queue = 2000\n")
            with front(folder, port) as process:
                yield port, process


def slope(memory: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """KiB an hour of a straight line through the samples, and the standard error of that.

    Theil and Sen's line: the median of the slopes of all pairs, which single peaks do not move; the
    error is that of least squares.
    """
    times, sizes = zip(*memory, strict=True)
    pairs = [
        (later[1] - early[1]) / (later[0] - early[0])
        for number, early in enumerate(memory)
        for later in memory[number + 1 :]
    ]
    fit = statistics.linear_regression(times, sizes)
    rest = [size - fit.slope * when - fit.intercept for when, size in memory]
    spread = statistics.pstdev(times)
    error = statistics.pstdev(rest) / spread / max(1, len(memory) - 2) ** 0.5
    return 3600 * statistics.median(pairs), 3600 * error


def write(journal: Journal, duration_s: float, port: int) -> list[str]:
    """The page."""
    steady = [row for row in journal.memory if row[0] >= WARM_SHARE * duration_s]
    kib_an_hour, error = slope(steady)
    quarters = [steady[: len(steady) // 3], steady[-(len(steady) // 3) :]]
    first, last = (statistics.median(size for _, size in rows) / 1024 for rows in quarters)
    total = sum(journal.outcomes.values())
    num_lost = sum(count for (_, outcome), count in journal.outcomes.items() if outcome == LOST)
    held = sum(read_metric(port, "ullage_front_running_requests").values())
    waiting = sum(read_metric(port, "ullage_front_waiting_requests").values())
    step = max(1, len(journal.memory) // 12)
    return [
        "# `ullage front` in an hour of what goes wrong",
        "",
        made_by("benchmarks.front.endurance"),
        "",
        (
            f"{duration_s / 60:.0f} minutes. Two stub engines; one was killed {journal.num_kills} "
            f"times and came back after {DOWN_S:.0f} s. The load of the machine, other programs "
            f"included, was {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the end."
        ),
        "",
        f"Of {total:,} requests {num_lost:,} ended without an answer. What became of them:",
        "",
        "| kind | outcome | requests |",
        "|---|---|---|",
        *(
            f"| {kind} | {outcome} | {count:,} |"
            for (kind, outcome), count in sorted(journal.outcomes.items())
        ),
        "",
        f"At the end {held:.0f} requests ran and {waiting:.0f} waited in the front.",
        "",
        "## Memory",
        "",
        (
            f"Of the last {100 * (1 - WARM_SHARE):.0f} % of the time, a sample every "
            f"{SAMPLE_S:.0f} s: the front's resident memory grew by {kib_an_hour:+,.0f} KiB an "
            f"hour (median of the slopes of all pairs; standard error {error:,.0f}). Its median "
            f"was {first:.1f} MiB in the first third of that and {last:.1f} MiB in the last."
        ),
        "",
        "| minute | MiB |",
        "|---|---|",
        *(f"| {when / 60:.0f} | {kib / 1024:.1f} |" for when, kib in journal.memory[::step]),
        "",
    ]


def main() -> None:
    """Runs, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    options = parser.parse_args()
    mortal_port = free_port()
    with setting(mortal_port) as (port, process):
        journal = asyncio.run(endure(port, mortal_port, process, 60 * options.minutes))
        lines = write(journal, 60 * options.minutes, port)
    PAGE.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
