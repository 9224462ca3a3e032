"""Compare `ullage front` with other ways to send requests to engines, in virtual time.

    python -m benchmarks.front [--minutes 10]

Writes docs/results/front.md. No engine runs: engine_model.py says what stands for one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.front.dispatch import (
    CacheUsage,
    Dispatch,
    Front,
    LeastRequests,
    TokenCounters,
)
from benchmarks.front.engine_model import BLOCK, EngineModel, Speed
from benchmarks.front.simulation import TOKEN_S, Result, simulate
from benchmarks.front.traffic import FIRST_TOKEN_S, MAX_TOKENS, TENANTS, make_traffic
from benchmarks.provenance import made_by
from benchmarks.results import publish

LOADS = (0.7, 0.85, 1.0)
ENGINES = 4
BLOCKS = 2560
SEED = 7
Make = Callable[[Sequence[EngineModel]], Dispatch]
DISPATCHES: dict[str, Make] = {
    "least requests": LeastRequests,
    "cache usage": CacheUsage,
    "token counters": TokenCounters,
    "token counters, with deadlines": lambda engines: TokenCounters(engines, with_deadlines=True),
    "**front**": Front,
    "front, predicts twice as much": lambda engines: Front(engines, scale=2.0),
    "front, predicts half as much": lambda engines: Front(engines, scale=0.5),
    "front, `max_tokens` reserved": lambda engines: Front(engines, quantile=None),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A dispatch at a load."""

    name: str
    goodput: float
    by_tenant: tuple[float, ...]
    num_preemptions: int
    documents_share: float
    first_token_p99_s: float


def measure(name: str, load: float, duration_s: float) -> Row:
    """Replays the traffic of a load."""
    arrivals = make_traffic(load, duration_s, SEED)
    engines = [EngineModel(str(number), BLOCKS) for number in range(ENGINES)]
    result = simulate(arrivals, engines, DISPATCHES[name])
    total = sum(result.token_seconds.values())
    return Row(
        name,
        result.goodput(),
        tuple(result.goodput(tenant) for tenant in TENANTS),
        result.num_preemptions,
        result.token_seconds.get("documents", 0.0) / total,
        first_token_p99_s(result),
    )


def first_token_p99_s(result: Result) -> float:
    """Of the chats that were started."""
    waits = sorted(
        times.first_s - each.arrival_s
        for each in result.arrivals
        if each.tenant == "chat"
        and (times := result.times.get(each.id)) is not None
        and times.first_s is not None
    )
    return waits[int(0.99 * (len(waits) - 1))]


def table(rows: Sequence[Row]) -> list[str]:
    """The rows of a load."""
    lines = [
        (
            f"| | goodput | {' | '.join(TENANTS)} | preemptions | documents' part of the cache | "
            "chat, first token p99 |"
        ),
        f"|---|{'---|' * (len(TENANTS) + 4)}",
    ]
    for row in rows:
        tenants = " | ".join(f"{100 * share:.0f} %" for share in row.by_tenant)
        lines.append(
            f"| {row.name} | **{100 * row.goodput:.1f} %** | {tenants} | {row.num_preemptions} | "
            f"{100 * row.documents_share:.0f} % | {row.first_token_p99_s:.1f} s |"
        )
    return lines


def margins(rows: Sequence[Row]) -> str:
    """How far the worst of the front's rows is ahead of each of the others."""
    fronts = [row for row in rows if "front" in row.name]
    worst = min(row.goodput for row in fronts)
    others = [row for row in rows if row not in fronts]
    parts = [f"{100 * (worst - row.goodput):+.1f} over {row.name}" for row in others]
    return f"The worst of the front's rows, in points: {', '.join(parts)}."


def main() -> None:
    """Replays, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    options = parser.parse_args()
    speed = Speed()
    slo = ", ".join(f"{name} {seconds:g} s" for name, seconds in FIRST_TOKEN_S.items())
    bounds = ", ".join(f"{name} {tokens}" for name, tokens in MAX_TOKENS.items())
    lines = [
        "# `ullage front` in virtual time",
        "",
        made_by("benchmarks.front"),
        "",
        (
            f"{ENGINES} engines with a cache of {BLOCKS:,} blocks of {BLOCK} tokens each "
            f"({BLOCKS * BLOCK:,} tokens), so that the cache is the bottleneck. They are models "
            "(`benchmarks/front/engine_model.py`): continuous batching, chunked prompts, a prefix "
            f"cache, preemption by recompute; a step takes {1000 * speed.step_s:g} ms, "
            f"{1e6 * speed.sequence_s:g} us for each sequence, "
            f"{1e6 * speed.prompt_token_s:g} us for "
            f"each prompt token (at most {speed.max_step_tokens}) and "
            f"{1e9 * speed.cached_token_s:g} "
            "ns for each token in the cache. Nothing here was measured on a GPU."
        ),
        "",
        (
            f"{options.minutes:g} minutes of made-up traffic in the shapes of Azure LLM "
            "2023 (chat, "
            "code) and Mooncake (sessions), and a hog that sends bursts of long documents "
            "(`benchmarks/front/traffic.py`). Answers end where they end; requests declare as "
            f"`max_tokens`: {bounds}."
        ),
        "",
        (
            "Goodput is the share of all requests whose first token came in time "
            f"({slo}) and whose "
            f"further tokens took {1000 * TOKEN_S:g} ms each on average. What is refused or never "
            "started counts as missed. All tenants have the same weight, so a fair "
            "share of the cache "
            "is 25 % where all ask for more. *least requests* and *cache usage* send everything at "
            "once; the usage is seen without delay. *token counters* is fair queueing "
            "by tokens (VTC), "
            "started as soon as free blocks hold the prompt; *with deadlines*, it drops what has "
            "waited too long, as the front does."
        ),
        "",
    ]
    for load in LOADS:
        rows = [measure(name, load, 60 * options.minutes) for name in DISPATCHES]
        count = len(make_traffic(load, 60 * options.minutes, SEED))
        lines += [f"## Load {load:g}: {count:,} requests", "", *table(rows), "", margins(rows), ""]
        print("\n".join(table(rows)), margins(rows), sep="\n", flush=True)
    publish("front", "\n".join(lines))


if __name__ == "__main__":
    main()
