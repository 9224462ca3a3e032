"""Run the front for an hour of what can go wrong, and look whether it stays sound.

    python -m benchmarks.front.endurance [--minutes 60]

Writes docs/results/front.md. Two sound engines and an odd one stand behind the front; a
sound one is killed and started again every two minutes. Clients send whole requests, hang up, read
slowly, and send what is malformed, odd or too large; every ten minutes 1,000 streams come at once.
A light tenant asks every two seconds, at first alone. What became of each request is counted: one
that ends without an answer is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from urllib.request import ProxyHandler, Request, build_opener

from benchmarks.front import odd_engine
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
from benchmarks.results import publish

KEY = "load" * 8
BLOCKS = 6000
STEP_S = 0.02
STREAMS = 1000
BURST_S = 600.0
DOWN_EACH_S, DOWN_S = 120.0, 5.0
SAMPLE_S = 10.0
PATIENCE_S = 180.0
ALONE_S, LIGHT_EACH_S = 120.0, 2.0
FIRST_BURST_S = 30.0  # after the load begins, and so not when an engine is killed
WARM_SHARE = 0.25  # of the time, in which the front may still take memory for the first time
# Requests a second of each kind.
RATES = {
    "whole": 1.6, "stream": 1.6, "hangs up": 0.6, "reads slowly": 0.05, "malformed": 0.4,
    "odd body": 0.4, "odd engine": 0.4,
}  # fmt: skip
LOST = "lost"
BROKE = ("502", "broke off, and says so")
# What the front's log says where a task has ended or an error was caught.
TROUBLES = ("Traceback", "it goes on", "never retrieved", "Task was destroyed", "Exception in")


@dataclass(slots=True)
class Journal:
    """What became of requests, by kind; the front's memory in KiB at each second of the run."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    memory: list[tuple[float, int]] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)  # of the machine
    kills: list[float] = field(default_factory=list)  # when an engine was killed
    light: list[tuple[float, float]] = field(default_factory=list)  # when it was sent, seconds
    loaded_s: float = 0.0  # when the load began

    def judge(self, outcome: str, expected: str, begin_s: float) -> str:
        """An outcome, with a reason where it is not the expected one."""
        if outcome in (expected, LOST):
            return outcome
        if outcome in BROKE and any(begin_s <= when <= time.monotonic() for when in self.kills):
            return f"{outcome}; an engine was killed meanwhile"
        return f"{outcome}, not {expected}"


def write_request(fields: str, *, more: str = "", key: str = KEY, model: str = "stub") -> bytes:
    """A POST of a completion."""
    body = f'{{"model": "{model}", {fields}}}'.encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    )
    return head.encode() + body


PROMPT = f'"prompt": "{"word " * 40}"'
WHOLE = write_request(f'{PROMPT}, "max_tokens": 20')
STREAM = write_request(f'{PROMPT}, "max_tokens": 20, "stream": true')
LONG = write_request(f'{PROMPT}, "max_tokens": 2000, "stream": true')
LARGE = write_request(f'{PROMPT}, "max_tokens": 2000, "stream": true, "user": "{"x" * 4096}"')
LIGHT = write_request(f'{PROMPT}, "max_tokens": 10', key="light" * 8)
HOST = b"host: 127.0.0.1\r\n"
LINE = b"POST /v1/completions HTTP/1.1\r\n"
# Each with the status that it is to get.
MALFORMED: tuple[tuple[bytes, str], ...] = (
    (write_request('"prompt": 5, "max_tokens": 20'), "400"),
    (write_request('"prompt": "x", "max_tokens": -1'), "400"),
    (write_request('"prompt": "x", "max_tokens": 99999999'), "400"),  # fits no cache
    (write_request('"prompt": "x", "priority": 1'), "400"),
    (write_request(f'"prompt": "{"x" * 2_000_000}", "max_tokens": 5'), "400"),  # fits no cache
    (write_request(f'"prompt": "{"x" * 9_000_000}", "max_tokens": 5'), "413"),  # above max_body
    (write_request(PROMPT, more="transfer-encoding: chunked\r\n"), "400"),
    (write_request(PROMPT, more="x-original-url: /admin\r\n"), "400"),
    (write_request(PROMPT, more=f"x-long: {'x' * 20_000}\r\n"), "431"),
    (write_request(PROMPT, key="nobody"), "401"),
    (LINE + HOST + b"content-length: 99999999999\r\n\r\n", "415"),
    (LINE + HOST + b"x: " + b"x" * 60_000, "400"),  # never ends
    (b"GET http://elsewhere/ HTTP/1.1\r\n" + HOST + b"\r\n", "400"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "400"),
)
ODD: tuple[tuple[bytes, str], ...] = (
    (write_request(f'{PROMPT}, "zeal": 1, "max_tokens": 5'), "400"),
    (write_request(f'"prompt": [{"1," * 262_144}1]'), "400"),  # just above the bound of values
    (write_request(f'{PROMPT}, "stop": {"[" * 200}{"]" * 200}'), "400"),
    (write_request(f'{PROMPT}, "stop": {"[" * 200_000}{"]" * 200_000}'), "400"),
    (write_request(PROMPT + ', "logit_bias": ' + '{"1":' * 200 + "1" + "}" * 200), "400"),
    (write_request(f'{PROMPT}, "max_tokens": 900, "max_tokens": 5'), "200"),  # the last counts
    (write_request(f'{PROMPT}, "model": "none"'), "404"),
    (write_request(f'"prompt": [{"[]," * 2_300_000}[]]'), "400"),
    (write_request(f'"prompt": [{"[]," * 2_300_000}'), "400"),  # 7 MB, and no end
    (write_request(f'"prompt": "{"[]," * 2_300_000}"'), "400"),  # a text, which fits no cache
    (write_request(f'{PROMPT}, "seed": 1e999'), "400"),
    (write_request(f'{PROMPT}, "user": "\\ud800"'), "400"),
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


async def read_slowly(port: int, request: bytes) -> str:
    """A client that takes nothing; the front cuts it off, or its answer has ended by itself."""
    few = socket.socket()
    few.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    few.connect(("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=few, limit=4096)
    writer.write(request)
    try:
        await asyncio.sleep(90.0)
        async with asyncio.timeout(PATIENCE_S):
            outcome = await read_answer(reader)
        return "cut off" if outcome == LOST else outcome
    except TimeoutError:
        return LOST
    except (OSError, asyncio.IncompleteReadError):
        return "cut off"
    finally:
        writer.transport.abort()


def senders(port: int, journal: Journal) -> dict[str, Callable[[random.Random], Awaitable[str]]]:
    """How a request of each kind is sent; gives what became of it."""

    async def expect(request: bytes, expected: str = "200") -> str:
        begin_s = time.monotonic()
        return journal.judge(await ask(port, request), expected, begin_s)

    async def slowly(request: bytes) -> str:
        begin_s = time.monotonic()
        outcome = await read_slowly(port, request)
        return outcome if outcome == "cut off" else journal.judge(outcome, "200", begin_s)

    async def oddly(name: str) -> str:
        request = write_request(f'"prompt": "{name}", "max_tokens": 5', model=odd_engine.MODEL)
        return f"{name}: {await expect(request, odd_engine.ANSWERS[name][1])}"

    names = [*odd_engine.ANSWERS]
    return {
        "whole": lambda _: expect(WHOLE),
        "stream": lambda _: expect(STREAM),
        "hangs up": lambda generator: hang_up(port, LONG, generator.random() * 4),
        "reads slowly": lambda generator: slowly(generator.choice((LONG, LARGE))),
        "malformed": lambda generator: expect(*generator.choice(MALFORMED)),
        "odd body": lambda generator: expect(*generator.choice(ODD)),
        "odd engine": lambda generator: oddly(generator.choice(names)),
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


async def send_light(port: int, until_s: float, journal: Journal) -> None:
    """The light tenant, whose requests are timed."""

    async def one() -> None:
        begin_s = time.monotonic()
        outcome = journal.judge(await ask(port, LIGHT), "200", begin_s)
        journal.light.append((begin_s, time.monotonic() - begin_s))
        journal.outcomes["light tenant", outcome] += 1

    async with asyncio.TaskGroup() as group:
        while time.monotonic() < until_s:
            group.create_task(one())
            await asyncio.sleep(LIGHT_EACH_S)


async def send_bursts(port: int, until_s: float, journal: Journal) -> None:
    """1,000 streams at once, again and again."""
    await asyncio.sleep(FIRST_BURST_S)
    while (begin_s := time.monotonic()) < until_s:
        for outcome in await asyncio.gather(*(ask(port, STREAM) for _ in range(STREAMS))):
            judged = journal.judge(outcome, "200", begin_s)
            journal.outcomes[f"{STREAMS:,} streams at once", judged] += 1
        await asyncio.sleep(max(0.0, min(BURST_S, until_s - time.monotonic())))


async def kill_engine(port: int, until_s: float, journal: Journal) -> None:
    """An engine that is killed, and comes back after some seconds."""
    while time.monotonic() < until_s:
        process = subprocess.Popen(stub_arguments(port, BLOCKS, STEP_S, STREAMS))
        try:
            await asyncio.sleep(max(1.0, min(DOWN_EACH_S, until_s - time.monotonic())))
        finally:
            journal.kills.append(time.monotonic())
            process.kill()
            process.wait()
        await asyncio.sleep(DOWN_S)


async def sample(process: subprocess.Popen[bytes], until_s: float, journal: Journal) -> None:
    """The front's memory, and the machine's load, as time goes by."""
    begin_s = time.monotonic()
    while time.monotonic() < until_s:
        journal.memory.append((time.monotonic() - begin_s, resident_kib(process)))
        journal.loads.append(os.getloadavg()[0])
        await asyncio.sleep(SAMPLE_S)


async def endure(place: Setting, duration_s: float) -> Journal:
    """The light tenant alone, and then all of it at once."""
    journal, port = Journal(), place.port
    until_s = time.monotonic() + duration_s
    async with asyncio.TaskGroup() as group:
        group.create_task(send_light(port, until_s, journal))
        group.create_task(kill_engine(place.mortal_port, until_s, journal))
        group.create_task(sample(place.process, until_s, journal))
        await asyncio.sleep(min(ALONE_S, duration_s / 3))
        journal.loaded_s = time.monotonic()
        group.create_task(send_bursts(port, until_s, journal))
        for kind, send in senders(port, journal).items():
            group.create_task(send_kind(kind, send, until_s, journal))
    await asyncio.sleep(5.0)
    return journal


@dataclass(frozen=True, slots=True)
class Setting:
    """A front and what stands behind it; its log has what it wrote as errors."""

    port: int
    process: subprocess.Popen[bytes]
    engine_port: int
    engine: subprocess.Popen[bytes]
    mortal_port: int
    log: IO[bytes]

    def read_log(self) -> str:
        """What the front has written so far."""
        return Path(self.log.name).read_text(errors="replace")


@contextlib.contextmanager
def setting() -> Iterator[Setting]:
    """A front before an engine that stays, one that does not, and one that is odd."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log = stack.enter_context((folder / "log").open("wb"))
        engine_port, odd_port, mortal_port = free_port(), free_port(), free_port()
        command = stub_arguments(engine_port, BLOCKS, STEP_S, STREAMS)[1:]
        engine = stack.enter_context(program(command, engine_port))
        command = ["-m", "benchmarks.front.odd_engine", "--port", str(odd_port)]
        stack.enter_context(program(command, odd_port))
        port = write_front(
            folder, [engine_port, mortal_port], BLOCKS, ["light", "load"],
            "characters_per_token = 4\nslow_reader_s = 10", max_requests=STREAMS,
            engine_more="prefill_in_flight = 1000000\n",
        )  # fmt: skip
        path = folder / "ullage.toml"
        path.write_text(
            f"{path.read_text()}max_queue = 2000\n[front.engine.odd]\n"
            f'url = "http://127.0.0.1:{odd_port}"\nmodels = "{odd_engine.MODEL}"\n'
            'cache = "1GiB"\ntoken_bytes = 1024\n'
        )
        process = stack.enter_context(front(folder, port, log))
        yield Setting(port, process, engine_port, engine, mortal_port, log)


def comes_to(port: int, name: str, engines: Iterable[str], value: float) -> bool:
    """Whether a metric of each engine comes to a value within half a minute."""
    limit_s = time.monotonic() + 30
    while time.monotonic() < limit_s:
        rows = read_metric(port, f"ullage_front_engine_{name}")
        found = [count for label, count in rows.items() if any(each in label for each in engines)]
        if found and all(count == value for count in found):
            return True
        time.sleep(0.5)
    return False


def look_at_end(place: Setting) -> tuple[dict[str, str], dict[str, bool]]:
    """What each sound engine answers while nothing else is sent to the other, and whether the front
    sees that they are up, that they are silent while they are stopped, and that they are back.
    """
    opener = build_opener(ProxyHandler({}))

    def order(name: str, verb: str) -> None:
        url = f"http://127.0.0.1:{place.port}/admin/engines/{name}/{verb}"
        opener.open(Request(url, b"{}", {"content-type": "application/json"}), timeout=20).close()

    command = stub_arguments(place.mortal_port, BLOCKS, STEP_S, STREAMS)[1:]
    with program(command, place.mortal_port) as mortal:
        engines = {f"e{place.engine_port}": place.engine, f"e{place.mortal_port}": mortal}
        seen = {"up": comes_to(place.port, "up", engines, 1)}
        seen["not stale"] = comes_to(place.port, "stale", engines, 0)
        answers: dict[str, str] = {}
        for kind, other in zip(("restarts", "stays"), engines, strict=True):
            order(other, "drain")
            answers[kind] = asyncio.run(ask(place.port, WHOLE))
            order(other, "resume")
        for engine in engines.values():
            engine.send_signal(signal.SIGSTOP)
        seen["stale while they are stopped"] = comes_to(place.port, "stale", engines, 1)
        for engine in engines.values():
            engine.send_signal(signal.SIGCONT)
        seen["not stale again"] = comes_to(place.port, "stale", engines, 0)
    return answers, seen


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


def describe_light(journal: Journal) -> str:
    """The light tenant's times, alone and under the load."""
    alone = [took_s for sent_s, took_s in journal.light if sent_s < journal.loaded_s]
    loaded = [took_s for sent_s, took_s in journal.light if sent_s >= journal.loaded_s]
    (low, high), (low_most, high_most) = (
        [statistics.quantiles(row, n=100)[rank] for row in (alone, loaded)] for rank in (49, 94)
    )
    return (
        f"A tenant with a key of its own asked every {LIGHT_EACH_S:.0f} s: {len(alone)} times "
        f"alone, {len(loaded):,} times under the load. An answer took {1000 * low:.0f} ms alone "
        f"(median; p95 {1000 * low_most:.0f} ms) and {1000 * high:.0f} ms under the load (p95 "
        f"{1000 * high_most:.0f} ms, **{high_most / low_most:.2f} times** that alone)."
    )


def write(journal: Journal, duration_s: float, place: Setting) -> list[str]:
    """The page."""
    steady = [row for row in journal.memory if row[0] >= WARM_SHARE * duration_s]
    kib_an_hour, error = slope(steady)
    quarters = [steady[: len(steady) // 3], steady[-(len(steady) // 3) :]]
    first, last = (statistics.median(size for _, size in rows) / 1024 for rows in quarters)

    def count(mark: str) -> int:
        return sum(number for (_, what), number in journal.outcomes.items() if mark in what)

    requests = read_metric(place.port, "ullage_front_requests_total")
    cut_off = sum(number for labels, number in requests.items() if '"slow reader"' in labels)
    held = sum(read_metric(place.port, "ullage_front_running_requests").values())
    waiting = sum(read_metric(place.port, "ullage_front_waiting_requests").values())
    answers, seen = look_at_end(place)
    log = place.read_log().splitlines()
    answered = ", ".join(f"the engine that {name} answered {got}" for name, got in answers.items())
    said = ", ".join(f"{name}: {'yes' if is_so else 'NO'}" for name, is_so in seen.items())
    troubles = sum(any(mark in line for mark in TROUBLES) for line in log)
    step = max(1, len(journal.memory) // 12)
    return [
        "# `ullage front` in an hour of what goes wrong",
        "",
        made_by("benchmarks.front.endurance"),
        "",
        (
            f"{duration_s / 60:.0f} minutes. Two sound engines, of which one was killed "
            f"{len(journal.kills)} times and came back after {DOWN_S:.0f} s, and an odd one with a "
            f"model of its own. The load of the machine, other programs included, was "
            f"{statistics.median(journal.loads):.1f} (median; {min(journal.loads):.1f} to "
            f"{max(journal.loads):.1f}) on {os.cpu_count()} cores."
        ),
        "",
        (
            f"Of {journal.outcomes.total():,} requests **{count(LOST):,}** ended without an "
            f"answer, and **{count(', not '):,}** got another than the expected one, which is 200 "
            "for each well-formed request, as one sound engine was always up. "
            f"{count('killed'):,} more broke off or got a 502 while an engine was killed. Of the "
            f"slow readers the front says that it cut off {cut_off:.0f}."
        ),
        "",
        "| kind | outcome | requests |",
        "|---|---|---|",
        *(
            f"| {kind} | {outcome} | {number:,} |"
            for (kind, outcome), number in sorted(journal.outcomes.items())
        ),
        "",
        "## The light tenant",
        "",
        describe_light(journal),
        "",
        "## The end",
        "",
        (
            f"{held:.0f} requests ran and {waiting:.0f} waited in the front. Through the front, "
            f"{answered}. The front said of both: {said}. "
            f"Of {len(log):,} lines of its log, {troubles:,} tell of a task that ended or of a "
            "traceback."
        ),
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
        "MiB by minute: "
        + ", ".join(f"{when / 60:.0f}: {kib / 1024:.1f}" for when, kib in journal.memory[::step])
        + ".",
        "",
    ]


def main() -> None:
    """Runs, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    options = parser.parse_args()
    with setting() as place:
        try:
            journal = asyncio.run(endure(place, 60 * options.minutes))
            lines = write(journal, 60 * options.minutes, place)
        finally:
            print(place.read_log(), file=sys.stderr)
    publish("front-endurance", "\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
