"""Measure what light tenants feel of a hog: two stub engines on sockets, without and with `front`.

    python -m benchmarks.front.tenants [--python PY --model FOLDER]

Writes docs/results/front-tenants.md. The engines are stubs (stub_engine.py): their caches, their
preemptions and the times of their steps are a model; HTTP and the front are real. With an
interpreter that has transformers[serving], and a small model, it does the same with real engines.
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
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.front.client import Connection, Timing
from benchmarks.front.load import quantile
from benchmarks.front.processes import (
    free_port,
    front,
    program,
    read_metric,
    stub,
    write_front,
)
from benchmarks.provenance import made_by

PAGE = Path(__file__).parents[2] / "docs" / "results" / "front-tenants.md"
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
    model: str = "stub"

    def fields(self, tokens: tuple[int, int]) -> dict[str, object]:
        """A request of so many tokens."""
        prompt, answer = tokens
        text = "x" * (prompt * self.characters)
        return {"model": self.model, "prompt": text, "max_tokens": answer, "stream": True}


STEP_S = 0.04
STUBS = Work((300, 40), (1500, 120), 0.8, 10, 256, 4)
REAL = Work((60, 10), (600, 40), 0.15, 8, 128, 1)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run: the light tenants' seconds, failures, preemptions, the hog's answers."""

    light_s: tuple[float, ...]
    num_failures: int
    num_preemptions: int | None
    hog_tokens: int
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


@contextlib.contextmanager
def stubs(work: Work) -> Iterator[list[int]]:
    """Two stub engines; gives their ports."""
    with stub(work.blocks, STEP_S) as first, stub(work.blocks, STEP_S) as second:
        yield [first, second]


@contextlib.contextmanager
def real(work: Work, python: str) -> Iterator[list[int]]:
    """Two servers of transformers, with a cache of the work's blocks."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(2):
            ports.append(free_port())
            arguments = [
                "-m", "transformers.cli.transformers", "serve", work.model, "--device", "cpu",
                "--continuous-batching", "--attn-implementation", "sdpa", "--port", str(ports[-1]),
                "--cb-num-blocks", str(work.blocks), "--cb-block-size", str(BLOCK),
            ]  # fmt: skip
            stack.enter_context(program(arguments, ports[-1], python=python, patience_s=300))
        yield ports


def measure(
    engines: list[int], duration_s: float, work: Work, *, with_front: bool, with_hog: bool
) -> Outcome:
    """One run; without the front each client alternates between the engines."""
    is_stub = work.model == "stub"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        more = f'reserve = "max_tokens"\ncharacters_per_token = {work.characters}'
        port = write_front(
            folder, engines, work.blocks, [*LIGHT, HOG], more, model=work.model,
            engine_more="" if is_stub else "metrics = false\n",
        )  # fmt: skip
        before = count_preemptions(engines) if is_stub else 0
        share = None
        if with_front:
            with front(folder, port):
                light, hog = asyncio.run(run([port], duration_s, work, with_hog=with_hog))
                used = read_metric(port, "ullage_front_byte_seconds_total")
                total = sum(used.values())
                share = next(value for label, value in used.items() if HOG in label) / total
        else:
            light, hog = asyncio.run(run(engines, duration_s, work, with_hog=with_hog))
        preemptions = count_preemptions(engines) - before if is_stub else None
    answered = [each for each in light if each.status == 200]
    return Outcome(
        tuple(each.last_s - each.sent_s for each in answered),
        len(light) - len(answered),
        preemptions,
        work.hog[1] * sum(each.status == 200 for each in hog),
        share,
    )


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
    f"A step of an engine takes {1000 * STEP_S:g} ms and more. Its cache, its preemptions and its",
    "times are a model (`benchmarks/front/stub_engine.py`); HTTP and the front are real.",
    "",
)
REAL_TEXT = (
    "`transformers serve` with continuous batching on the CPU, a Llama of 2 layers with random",
    "weights. It does not say how often it preempted.",
    "",
)


def write(work: Work, rows: dict[str, Outcome]) -> list[str]:
    """The lines of the page about a pair of engines."""
    alone_s = quantile(rows["alone"].light_s, 0.99)
    hog = rows["with the hog"]
    direct = rows["with the hog, without the front"]
    heads = (
        "light tenants", "requests", "p50, s", "p90, s", "p99, s", "p99 to alone", "refused",
        "preemptions", "hog's tokens",
    )  # fmt: skip
    return [
        f"Caches of {work.blocks} blocks of {BLOCK} tokens. Two light tenants send {work.rate:g}",
        f"requests a second each ({work.light[0]} tokens, {work.light[1]} written); the hog keeps",
        f"{work.hog_connections} requests going ({work.hog[0]:,} tokens, {work.hog[1]} written),",
        "more than both caches hold. The load of the machine, other programs included, was",
        f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.",
        "",
        f"| {' | '.join(heads)} |",
        "|---" * len(heads) + "|",
        *(table_row(name, row, alone_s) for name, row in rows.items()),
        "",
        f"With the front the hog had {100 * (hog.hog_share or 0):.0f} % of the byte-seconds that",
        f"were used, and {100 * hog.hog_tokens / max(1, direct.hog_tokens):.0f} % of the tokens",
        "that it gets without. The goals: a p99 of at most 1.5 times that alone, and 80 % for the",
        "hog.",
    ]


def table_row(name: str, row: Outcome, alone_s: float) -> str:
    """A run."""
    p50, p90, p99 = (quantile(row.light_s, share) for share in (0.5, 0.9, 0.99))
    preemptions = "not told" if row.num_preemptions is None else f"{row.num_preemptions}"
    return (
        f"| {name} | {len(row.light_s)} | {p50:.2f} | {p90:.2f} | {p99:.2f} | "
        f"{p99 / alone_s:.2f} | {row.num_failures} | {preemptions} | {row.hog_tokens:,} |"
    )


def main() -> None:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--python", help="with transformers[serving]: real engines as well")
    parser.add_argument("--model", help="folder of a small model, for those")
    options = parser.parse_args()
    parts = ["# Light tenants beside a hog, on sockets", "", made_by("benchmarks.front.tenants")]
    with stubs(STUBS) as engines:
        lines = write(STUBS, compare(engines, options.seconds, STUBS))
    parts += ["", "## Two stub engines", "", *STUB_TEXT, *lines]
    PAGE.write_text("\n".join([*parts, ""]))
    if options.python and options.model:
        work = replace(REAL, model=options.model)
        with real(work, options.python) as engines:
            asyncio.run(run(engines, 5.0, work, with_hog=False))  # the model is loaded then
            lines = write(work, compare(engines, 2 * options.seconds, work))
        parts += ["", "## Two real engines", "", *REAL_TEXT, *lines]
        PAGE.write_text("\n".join([*parts, ""]))
    print("\n".join(parts))


if __name__ == "__main__":
    main()
