"""Measure what light tenants feel of a hog: two stub engines on sockets, without and with `front`.

    python -m benchmarks.front.tenants
    python -m benchmarks.front.tenants --engines 8351,8352 --engine-name "vLLM 0.32.0 on the CPU"

Writes docs/results/front.md. The engines are stubs (stub_engine.py): their caches, their
preemptions and the times of their steps are a model; HTTP and the front are real. The second form
does the same with two real engines, each on a core of its own, started by

    OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind taskset -c CORE vllm serve FOLDER
        --served-model-name stub --port PORT --block-size 32 --max-model-len 1024
        --num-gpu-blocks-override 128 --no-enable-prefix-caching --enforce-eager
        --distributed-executor-backend vllm.v1.executor.uniproc_executor.UniProcExecutor

with the folder that small_model.py makes. By default vLLM binds the threads of both to the same
core, and each has a process for its scheduler and one for its model, which wait for each other in
busy loops: on two cores those are what is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.front.client import Connection, Timing
from benchmarks.front.load import quantile
from benchmarks.front.processes import (
    TOKEN_BYTES,
    front,
    read_metric,
    stub,
    write_front,
)
from benchmarks.provenance import made_by
from benchmarks.results import publish

LIGHT = ("light1", "light2")
HOG = "hog"
BLOCK = 16
KEY_REPEATED = 8


@dataclass(frozen=True, slots=True)
class Work:
    """What is sent: of light tenants and of the hog the tokens of a prompt and of an answer; how
    many requests a second a light tenant sends, how many the hog keeps going; and the blocks of an
    engine's cache. A token is so many characters.
    """

    light: tuple[int, int]
    hog: tuple[int, int]
    rate: float
    hog_connections: int
    blocks: int
    characters: int
    block_tokens: int = BLOCK

    @property
    def cache_tokens(self) -> int:
        """What an engine's cache holds."""
        return self.blocks * BLOCK

    @property
    def cache_bytes(self) -> int:
        """As the configuration of the front has it."""
        return self.cache_tokens * TOKEN_BYTES

    @property
    def hog_requests(self) -> int:
        """Of the hog, that fit a cache whole."""
        return self.cache_tokens // sum(self.hog)

    @property
    def hog_most(self) -> float:
        """The share of a cache that as many of the hog's requests as fit whole hold on average: a
        prompt all the time, and half of its answer.
        """
        prompt, answer = self.hog
        return self.hog_requests * (prompt + answer / 2) / self.cache_tokens

    def fields(self, tokens: tuple[int, int]) -> dict[str, object]:
        """A request of so many tokens."""
        prompt, answer = tokens
        text = "x" * (prompt * self.characters)
        return {
            "model": "stub",
            "prompt": text,
            "ignore_eos": True,
            "max_tokens": answer,
            "stream": True,
        }


STEP_S = 0.04
STUBS = Work((300, 40), (1500, 120), 0.8, 10, 256, 4)
# Of 128 blocks of 32 tokens vLLM keeps one for itself.
REAL = Work((60, 20), (600, 100), 1.0, 14, 254, 1, block_tokens=32)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run: the light tenants' seconds, those to their first tokens, failures,
    preemptions, the hog's answers, and the hog's part of the byte-seconds that the light ones left.
    """

    light_s: tuple[float, ...]
    first_s: tuple[float, ...]
    num_failures: int
    num_preemptions: int
    hog_tokens_per_s: float
    hog_share: float | None


async def send_light(
    ports: Sequence[int], tenant: str, duration_s: float, work: Work
) -> list[Timing]:
    """A Poisson stream of requests, each on a connection of its own."""
    generator = random.Random(tenant)
    end_s = time.monotonic() + duration_s
    tasks = []
    number = 0
    while time.monotonic() < end_s:
        await asyncio.sleep(generator.expovariate(work.rate))
        number += 1
        connection = Connection(ports[number % len(ports)], tenant * KEY_REPEATED)
        tasks.append(asyncio.create_task(send(connection, work.fields(work.light))))
    return [*await asyncio.gather(*tasks)]


async def send(connection: Connection, fields: dict[str, object]) -> Timing:
    """One streamed request."""
    try:
        return await connection.ask(fields)
    finally:
        await connection.close()


async def send_hog(port: int, until_s: float, work: Work) -> list[Timing]:
    """A request after the other."""
    timings = []
    while time.monotonic() < until_s:
        timings.append(await send(Connection(port, HOG * KEY_REPEATED), work.fields(work.hog)))
    return timings


async def run(
    ports: Sequence[int], duration_s: float, work: Work, *, with_hog: bool
) -> tuple[list[Timing], list[Timing]]:
    """The light tenants' requests, and the hog's beside them."""
    until_s = time.monotonic() + duration_s
    hogs = [
        send_hog(ports[number % len(ports)], until_s, work)
        for number in range(work.hog_connections if with_hog else 0)
    ]
    lights = [send_light(ports, tenant, duration_s, work) for tenant in LIGHT]
    rows = await asyncio.gather(*lights, *hogs)
    light = [each for row in rows[: len(LIGHT)] for each in row]
    return light, [each for row in rows[len(LIGHT) :] for each in row]


async def run_apart(
    engines: Sequence[int], duration_s: float, work: Work, *, with_hog: bool
) -> list[Timing]:
    """The light tenants' requests at the first engine, as many of the hog's as fit at the second:
    they share no step, no cache and no front, only the machine.
    """
    until_s = time.monotonic() + duration_s
    count = work.hog_requests if with_hog else 0
    hogs = [send_hog(engines[1], until_s, work) for _ in range(count)]
    lights = [send_light(engines[:1], tenant, duration_s, work) for tenant in LIGHT]
    rows = await asyncio.gather(*lights, *hogs)
    return [each for row in rows[: len(LIGHT)] for each in row]


@contextlib.contextmanager
def stubs(work: Work) -> Iterator[list[int]]:
    """Two stub engines; gives their ports."""
    with stub(work.blocks, STEP_S) as first, stub(work.blocks, STEP_S) as second:
        yield [first, second]


def measure(
    engines: list[int], duration_s: float, work: Work, *, with_front: bool, with_hog: bool
) -> Outcome:
    """One run; without the front each client alternates between the engines."""
    hog_share = None
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        more = f'reserve = "max_tokens"\ncharacters_per_token = {work.characters}'
        port = write_front(
            folder, engines, work.blocks, [*LIGHT, HOG], more,
            engine_more=f"block_tokens = {work.block_tokens}\n",
        )  # fmt: skip
        before = count_preemptions(engines)
        begin_s = time.monotonic()
        if with_front:
            with front(folder, port):
                begin_s = time.monotonic()
                light, hog = asyncio.run(run([port], duration_s, work, with_hog=with_hog))
                took_s = time.monotonic() - begin_s
                used = read_metric(port, "ullage_front_byte_seconds_total")
            whole = len(engines) * work.cache_bytes * took_s
            hogs = next(value for label, value in used.items() if f'"{HOG}"' in label)
            hog_share = hogs / (whole - (sum(used.values()) - hogs))
        else:
            light, hog = asyncio.run(run(engines, duration_s, work, with_hog=with_hog))
            took_s = time.monotonic() - begin_s
        preemptions = count_preemptions(engines) - before
    answered = [each for each in light if each.status == 200]
    hog_tokens = work.hog[1] * sum(each.status == 200 for each in hog)
    return Outcome(
        tuple(each.last_s - each.sent_s for each in answered),
        tuple(each.first_token_s for each in answered),
        len(light) - len(answered), preemptions, hog_tokens / took_s, hog_share,
    )  # fmt: skip


def count_preemptions(engines: Sequence[int]) -> int:
    """Of all engines, since they were started."""
    return int(
        sum(sum(read_metric(each, "vllm:num_preemptions_total").values()) for each in engines)
    )


def compare(engines: list[int], duration_s: float, work: Work) -> dict[str, Outcome]:
    """The three runs."""
    cases = {
        "alone": (True, False),
        "with the hog": (True, True),
        "with the hog, without the front": (False, True),
    }
    return {
        name: measure(engines, duration_s, work, with_front=with_front, with_hog=with_hog)
        for name, (with_front, with_hog) in cases.items()
    }


STUB_TEXT = (
    f"A step of an engine takes {1000 * STEP_S:g} ms and more. Its cache, its preemptions and its "
    "times are a model (`benchmarks/front/stub_engine.py`); HTTP and the front are real."
)
REAL_TEXT = (
    "Two servers of {engine}, with a Llama of 2 layers and random weights "
    "(`benchmarks/front/small_model.py`), each on one core; the front and the clients share both. "
    "The preemptions are those that the engines count."
)
APART_TEXT = (
    "What the machine does, without the front: sent to the first engine, the light tenants' "
    "requests take {p50:.2f} s (p50) and {p99:.2f} s (p99) alone, and {hog_p50:.2f} s and "
    "{hog_p99:.2f} s while {count} requests of the hog run on the second, with which they share "
    "no step, no cache and no core of an engine, but the clients' and servers' processor time and "
    "the memory's bandwidth."
)


def write(text: str, work: Work, rows: dict[str, Outcome]) -> str:
    """The section of the page about a pair of engines."""
    alone_s = quantile(rows["alone"].light_s, 0.99)
    hog = rows["with the hog"]
    direct = rows["with the hog, without the front"]
    heads = (
        "light tenants", "requests", "p50, s", "p90, s", "p99, s", "p99 to alone",
        "first token p99, s", "refused", "preemptions", "hog's tokens a second",
    )  # fmt: skip
    lines = [
        text,
        "",
        (
            f"Caches of {work.cache_tokens:,} tokens. Two light tenants send {work.rate:g} "
            f"requests a second each ({work.light[0]} tokens, {work.light[1]} written); the hog "
            f"keeps {work.hog_connections} requests going ({work.hog[0]:,} tokens, "
            f"{work.hog[1]} written), more than both caches hold. The load of the machine, other "
            f"programs included, was {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the "
            "end."
        ),
        "",
        f"| {' | '.join(heads)} |",
        "|---" * len(heads) + "|",
        *(table_row(name, row, alone_s) for name, row in rows.items()),
        "",
        (
            f"Behind the front the hog had {100 * (hog.hog_share or 0):.0f} % of all byte-seconds "
            "of both caches that the light tenants did not use, the seconds at the end in which it "
            "sent nothing new among them. As many of its requests as fit a cache whole fill "
            f"{100 * work.hog_most:.0f} % of it on average, so that it had "
            f"{100 * (hog.hog_share or 0) / work.hog_most:.0f} % of what it can have. A fair share "
            "by weight is a third of the caches. It wrote "
            f"{100 * hog.hog_tokens_per_s / max(0.1, direct.hog_tokens_per_s):.0f} % of the "
            "tokens that it writes without the front. The goals: a p99 of at most 1.5 times that "
            "alone, and 80 % of its fair share for the hog."
        ),
        "",
    ]
    return "\n".join(lines)


def write_apart(engines: Sequence[int], duration_s: float, work: Work) -> str:
    """Measures what the light tenants feel of a hog with which they share the machine alone."""
    taken = []
    for with_hog in (False, True):
        timings = asyncio.run(run_apart(engines, duration_s, work, with_hog=with_hog))
        taken.append([each.last_s - each.sent_s for each in timings if each.status == 200])
    return APART_TEXT.format(
        p50=quantile(taken[0], 0.5), p99=quantile(taken[0], 0.99),
        hog_p50=quantile(taken[1], 0.5), hog_p99=quantile(taken[1], 0.99),
        count=work.hog_requests,
    )  # fmt: skip


def table_row(name: str, row: Outcome, alone_s: float) -> str:
    """A run."""
    p50, p90, p99 = (quantile(row.light_s, share) for share in (0.5, 0.9, 0.99))
    return (
        f"| {name} | {len(row.light_s)} | {p50:.2f} | {p90:.2f} | {p99:.2f} | "
        f"{p99 / alone_s:.2f} | {quantile(row.first_s, 0.99):.2f} | {row.num_failures} | "
        f"{row.num_preemptions} | "
        f"{row.hog_tokens_per_s:,.0f} |"
    )


def render(engines: str, text: str) -> str:
    """The report of the runs before these engines."""
    head = f"# Light tenants beside a hog, {engines}"
    return f"{head}\n\n{made_by('benchmarks.front.tenants')}\n\n{text}"


def main() -> None:
    """Measures, and writes its section of the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=50, help="of each of the three runs")
    parser.add_argument(
        "--engines", help="ports of two real ones that run and serve the model 'stub'; else stubs"
    )
    parser.add_argument("--engine-name", default="vLLM", help="what the page calls those")
    options = parser.parse_args()
    if options.engines:
        ports = [int(port) for port in options.engines.split(",")]
        asyncio.run(run(ports, 5.0, REAL, with_hog=True))  # the first requests are slow
        rows = compare(ports, options.seconds, REAL)
        text = REAL_TEXT.format(engine=options.engine_name)
        apart = write_apart(ports, options.seconds, REAL)
        text = f"{write(text, REAL, rows)}\n{apart}"
        publish("front-tenants", render("two real engines", text))
        return
    with stubs(STUBS) as engines:
        rows = compare(engines, options.seconds, STUBS)
    text = write(STUB_TEXT, STUBS, rows)
    publish("front-tenants-stubs", render("two stub engines", text))


if __name__ == "__main__":
    main()
