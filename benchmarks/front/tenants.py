"""Measure what light tenants feel of a hog: two stub engines on sockets, without and with `front`.

    python -m benchmarks.front.tenants

Writes docs/results/front-tenants.md. The engines are stubs (stub_engine.py): their caches, their
preemptions and the times of their steps are a model; HTTP and the front are real.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

from benchmarks.front.client import Connection, Timing
from benchmarks.front.load import quantile
from benchmarks.front.processes import front, stub, write_front
from benchmarks.provenance import made_by

PAGE = Path(__file__).parents[2] / "docs" / "results" / "front-tenants.md"
BLOCKS = 256
STEP_S = 0.04
LIGHT = ("light1", "light2")
HOG = "hog"
RATE = 0.8  # requests a second of a light tenant
LIGHT_REQUEST = {"prompt": "x" * 1200, "max_tokens": 40}
HOG_REQUEST = {"prompt": "x" * 6000, "max_tokens": 120}
HOG_CONNECTIONS = 10


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run: the light tenants' seconds, failures, preemptions, the hog's answers."""

    light_s: tuple[float, ...]
    num_failures: int
    num_preemptions: int
    hog_tokens: int
    hog_share: float | None


async def send_light(ports: Sequence[int], tenant: str, duration_s: float) -> list[Timing]:
    """A Poisson stream of requests, each on a connection of its own."""
    generator = random.Random(tenant)
    end_s = time.monotonic() + duration_s
    tasks = []
    number = 0
    while time.monotonic() < end_s:
        await asyncio.sleep(generator.expovariate(RATE))
        number += 1
        connection = Connection(ports[number % len(ports)], tenant * 8)
        tasks.append(asyncio.create_task(send(connection, LIGHT_REQUEST)))
    return [*await asyncio.gather(*tasks)]


async def send(connection: Connection, fields: dict[str, object]) -> Timing:
    """One streamed request."""
    try:
        return await connection.ask({**fields, "stream": True})
    finally:
        await connection.close()


async def send_hog(port: int, until_s: float) -> list[Timing]:
    """A request after the other."""
    timings = []
    while time.monotonic() < until_s:
        timings.append(await send(Connection(port, HOG * 8), HOG_REQUEST))
    return timings


async def run(
    ports: Sequence[int], duration_s: float, *, with_hog: bool
) -> tuple[list[Timing], ...]:
    """The light tenants, and the hog beside them."""
    until_s = time.monotonic() + duration_s
    hogs = [
        send_hog(ports[number % len(ports)], until_s)
        for number in range(HOG_CONNECTIONS if with_hog else 0)
    ]
    lights = [send_light(ports, tenant, duration_s) for tenant in LIGHT]
    rows = await asyncio.gather(*lights, *hogs)
    light = [each for row in rows[: len(LIGHT)] for each in row]
    return light, [each for row in rows[len(LIGHT) :] for each in row]


def read(port: int, name: str) -> dict[str, float]:
    """A metric's values, by the text of its labels."""
    opener = build_opener(ProxyHandler({}))
    text = opener.open(f"http://127.0.0.1:{port}/metrics", timeout=20).read().decode()
    lines = [line for line in text.splitlines() if line.startswith(name)]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def measure(duration_s: float, *, with_front: bool, with_hog: bool) -> Outcome:
    """One run on fresh engines; without the front each client alternates between the engines."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        stub(BLOCKS, STEP_S) as first,
        stub(BLOCKS, STEP_S) as second,
    ):
        engines = [first, second]
        folder = Path(scratch)
        port = write_front(folder, engines, BLOCKS, [*LIGHT, HOG], 'reserve = "max_tokens"')
        share = None
        if with_front:
            with front(folder, port):
                light, hog = asyncio.run(run([port], duration_s, with_hog=with_hog))
                used = read(port, "ullage_front_byte_seconds_total")
                total = sum(used.values())
                share = next(value for label, value in used.items() if HOG in label) / total
        else:
            light, hog = asyncio.run(run(engines, duration_s, with_hog=with_hog))
        preemptions = sum(
            sum(read(each, "vllm:num_preemptions_total").values()) for each in engines
        )
    answered = [each for each in light if each.status == 200]
    return Outcome(
        tuple(each.last_s - each.sent_s for each in answered),
        len(light) - len(answered),
        int(preemptions),
        sum(each.events for each in hog),
        share,
    )


def main() -> None:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    cases = {
        "alone": (True, False),
        "with the hog": (True, True),
        "with the hog, without the front": (False, True),
    }
    rows = {
        name: measure(options.seconds, with_front=with_front, with_hog=with_hog)
        for name, (with_front, with_hog) in cases.items()
    }
    alone_s = quantile(rows["alone"].light_s, 0.99)
    hog = rows["with the hog"]
    free = 1.0 - demand(rows["alone"]) / (2 * BLOCKS * 16)
    direct_tokens = rows["with the hog, without the front"].hog_tokens
    lines = [
        "# Light tenants beside a hog, on sockets",
        "",
        made_by("benchmarks.front.tenants"),
        "",
        (f"Two stub engines with {BLOCKS} blocks of 16 tokens, whose steps take "
        f"{1000 * STEP_S:g} ms and more; their caches, preemptions and times are a model, HTTP and "
        f"the front are real. Two light tenants send {RATE:g} requests a second each (300 tokens, "
        f"40 written); the hog keeps {HOG_CONNECTIONS} requests going (1,500 tokens, 120 written), "
        f"which is more than both caches hold. {options.seconds:g} seconds each; the load of the "
        f"machine, others included, was {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."),
        "",
        ("| light tenants | requests | p50, s | p99, s | p99 to alone | refused | preemptions | "
        "hog's tokens |"),
        "|---|---|---|---|---|---|---|---|",
        *(
            f"| {name} | {len(row.light_s)} | {quantile(row.light_s, 0.5):.2f} | "
            f"{quantile(row.light_s, 0.99):.2f} | {quantile(row.light_s, 0.99) / alone_s:.2f} | "
            f"{row.num_failures} | {row.num_preemptions} | {row.hog_tokens:,} |"
            for name, row in rows.items()
        ),
        "",
        (f"The hog had {100 * (hog.hog_share or 0):.0f} % of the byte-seconds that were used, a "
        "third of which would be its share if the light tenants asked for more; and "
        f"{100 * hog.hog_tokens / max(1, direct_tokens):.0f} % of the tokens that it gets without "
        f"the front. What the light tenants leave of the caches is {100 * free:.0f} %. The goal: a "
        "p99 of at most 1.5 times that alone, and 80 % of the hog's fair share."),
        "",
    ]  # fmt: skip
    PAGE.write_text("\n".join(lines))
    print("\n".join(lines))


def demand(row: Outcome) -> float:
    """Tokens that the light tenants hold on average, by Little's law."""
    tokens = len(LIGHT_REQUEST["prompt"]) / 4 + LIGHT_REQUEST["max_tokens"] / 2  # type: ignore[arg-type, operator]
    mean_s = sum(row.light_s) / max(1, len(row.light_s))
    return len(LIGHT) * RATE * mean_s * tokens


if __name__ == "__main__":
    main()
