"""Writes docs/results/serve.md from serve.json (see benchmarks.serving.serve).

write_page(results)      the parts of serve.json that are there; of the others it says so
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.provenance import made_by
from benchmarks.results import publish

HERE: Final = Path(__file__).resolve().parent
LOOPS: Final = HERE / "published_loops.csv"
TIMES: Final = {
    "to the first token": "ttft_s",
    "for each token after it": "tpot_s",
    "to the last token": "e2e_s",
    "in the queue": "queue_s",
}


def write_page(results: dict[str, Any]) -> None:
    """Writes the page."""
    first = next(each for each in results.values() if "document" in each)["document"]
    parts = [
        "# `ullage serve`: an hour of traffic, a curve by load, and measured servers",
        made_by("benchmarks.serving.serve", torch=first["torch"]),
        (
            f"The engine is vLLM {first['engine']['version']} on the phantom, started as `vllm "
            "serve` starts it, with CUDA graphs, its own scheduler and blocks "
            "([serve.md](../guide/serve.md)). Hours and curve are of the device alone "
            "(`host_time` is none in `ullage.toml`); the measured servers below have the host's "
            "time."
        ),
    ]
    parts += [hour_part(results[name]) for name in ("code", "conv") if name in results]
    parts.append(curve_part(results["curve"]) if "curve" in results else NO_CURVE)
    servers = [name for name in SERVERS if name in results]
    parts.append(LOOPS_INTRODUCTION if servers else NO_LOOPS)
    parts += [loops_part(results[name], SERVERS[name]) for name in servers]
    publish("serve", "\n\n".join(parts) + "\n")


NO_CURVE: Final = "## By load\n\nNot run here yet."
SERVERS: Final = {
    "loops": "Qwen3-32B in 16 bits",
    "loops-fp8": "Qwen3-32B in float8",
    "loops-experts": "gpt-oss-120b, experts in MXFP4",
}
LOOPS_INTRODUCTION: Final = (
    "## Measured servers\n\nClosed loops of aiconfigurator-core 0.12.0, "
    "systems/silicon_sample.csv (Apache-2.0): each user asks again when it has its answer.\n\n"
    + (HERE / "closed_loops.txt").read_text(encoding="utf-8").strip()
)
NO_LOOPS: Final = "## Measured servers\n\nNot run here yet."


def hour_part(hour: dict[str, Any]) -> str:
    """An hour of traffic, and what it took on this machine."""
    document = hour["document"]
    everyone, engine = document["classes"][0], document["engine"]
    rows = ["| | p50 | p90 | p99 |", "|---|--:|--:|--:|"]
    for label, name in TIMES.items():
        cells = " | ".join(f"{1e3 * value:,.1f} ms" for value in everyone[name].values())
        rows.append(f"| {label} | {cells} |")
    figures = HOUR_FIGURES.format(
        answered=document["num_answered"],
        sent=everyone["num_requests"],
        rate=document["output_tokens_per_s"],
        good=100 * everyone["goodput_frac"],
        tokens=engine["kv_cache_tokens"],
        gib=engine["kv_cache_bytes"] / 2**30,
        peak=100 * document["usage_peak_frac"],
        preemptions=document["num_preemptions"],
    )
    costs = hour["runs"]
    took = HOUR_TOOK.format(
        cpu=" and ".join(f"{run['cpu_s'] / 60:.1f}" for run in costs),
        wall=" and ".join(f"{run['wall_s'] / 60:.1f}" for run in costs),
        load=" and ".join(f"{run['load']}" for run in costs),
        number="One run" if len(costs) == 1 else "Two runs, one after the other,",
        steps=document["steps"]["num_steps"],
        **costs[0]["real_s"],
    )
    if len(costs) > 1:
        same = "equal in every figure" if hour["is_equal"] else "**not equal**"
        took += f" Their documents are {same} (without `real_s`)."
    title = f"## An hour of {document['traffic']['source'].partition(':')[0]}"
    return "\n".join([title, "", f"`{hour['command']}`", "", figures, "", *rows, "", took])


HOUR_FIGURES: Final = (
    "{answered:,} of {sent:,} requests were answered, with {rate:,.0f} tokens a second; "
    "{good:.1f} % within the objective. The cache has {tokens:,} tokens ({gib:.2f} GiB), of which "
    "{peak:.0f} % were in use at most; {preemptions} preemptions."
)
HOUR_TOOK: Final = (
    "{number} took {cpu} minutes of a processor, and {wall} minutes on the wall beside "
    "other work (a load of {load} on two cores). Of the first, {start_s:.0f} s went by until the "
    "engine had started, {measure_s:.0f} s for measuring its steps, and {replay_s:.0f} s for "
    "{steps:,} steps."
)


def curve_part(run: dict[str, Any]) -> str:
    """The figures by load, and by the cache's occupancy."""
    document = run["document"]
    curve, engine = document["curve"], document["engine"]
    rows = [CURVE_HEAD]
    for point in curve["points"]:
        everyone = point["classes"][0]
        first, each = everyone["ttft_s"], everyone["tpot_s"]
        name = f"{point['load']:g}" + (" (knee)" if point["load"] == curve["knee_load"] else "")
        cells = [name, f"{point['offered_per_s']:.2f}", f"{point['requests_per_s']:.2f}"]
        cells += [f"{point['good_requests_per_s']:.2f}"]
        cells += [f"{1e3 * first[key]:,.0f}" for key in ("p50", "p99")]
        cells += [f"{1e3 * each[key]:,.1f}" for key in ("p50", "p99")]
        cells += [f"{100 * point['usage_peak_frac']:.0f} %", f"{point['num_preemptions']:,}"]
        rows.append(f"| {' | '.join(cells)} |")
    occupancy = [OCCUPANCY_HEAD]
    for row in curve["by_occupancy"]:
        span = f"{100 * row['low_frac']:.0f} to {100 * row['high_frac']:.0f} %"
        times = [f"{1e3 * row['ttft_s'][key]:,.0f}" for key in ("p50", "p90", "p99")]
        times += [f"{1e3 * row['tpot_s'][key]:,.1f}" for key in ("p50", "p90", "p99")]
        occupancy.append(f"| {span} | {row['num_requests']:,} | {' | '.join(times)} |")
    text = CURVE_TEXT.format(
        tokens=engine["kv_cache_tokens"], knee=curve["knee_load"], best=curve["best_load"],
        cpu=run["cpu_s"] / 60, wall=run["wall_s"] / 60,
    )  # fmt: skip
    return "\n".join(["## By load", "", f"`{run['command']}`", "", text, "", *rows, "", *occupancy])


CURVE_TEXT: Final = (
    "One start, and the same requests at each load; times are in milliseconds. The cache has "
    "{tokens:,} tokens. The knee, by Kleinrock's power, is at {knee:g} times the load, the most "
    "requests within the objective at {best:g}. It took {cpu:.1f} minutes of a processor "
    "({wall:.1f} on the wall). Below, the requests of all loads by the cache's occupancy at their "
    "arrival."
)
CURVE_HEAD: Final = (
    "| load | sent/s | answered/s | good/s | first p50 | p99 | each p50 | p99 | cache "
    "| preemptions |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)
OCCUPANCY_HEAD: Final = (
    "| cache in use | requests | first p50 | p90 | p99 | each p50 | p90 | p99 |\n"
    "|---|--:|--:|--:|--:|--:|--:|--:|"
)


class Compared(NamedTuple):
    """A published row beside what came out, in milliseconds."""

    row: dict[str, str]
    ttft: float
    one_ttft: float
    tpot: float
    cache: float

    @property
    def ttft_error(self) -> float:
        """Of the time to the first token, by the tool's way of measuring."""
        return self.ttft / float(self.row["ttft_ms"]) - 1

    @property
    def one_error(self) -> float:
        """The same, of a server whose steps have room for one prompt."""
        return self.one_ttft / float(self.row["ttft_ms"]) - 1

    @property
    def tpot_error(self) -> float:
        """Of the time for each token after the first."""
        return self.tpot / float(self.row["tpot_ms"]) - 1

    @property
    def e2e_error(self) -> float:
        """Of the whole, which follows from both."""
        gaps = int(self.row["output"]) - 1
        measured = float(self.row["ttft_ms"]) + gaps * float(self.row["tpot_ms"])
        return (self.ttft + gaps * self.tpot) / measured - 1


def compared(loops: dict[str, Any]) -> Iterator[Compared]:
    """The published rows that were run."""
    rows, ones = (_by_loop(loops[name]) for name in ("rows", "one_prompt"))
    for published in _published(loops["model"]):
        loop = tuple(int(published[name]) for name in ("prompt", "output", "users"))
        if loop in rows:
            row, one = rows[loop], ones.get(loop, {"ttft_s": math.nan})
            yield Compared(
                published, 1e3 * row["ttft_s"], 1e3 * one["ttft_s"], 1e3 * row["tpot_s"],
                row["usage_peak_frac"],
            )  # fmt: skip


def _by_loop(rows: list[dict[str, Any]]) -> dict[tuple[int, ...], dict[str, Any]]:
    return {(row["prompt"], row["output"], row["users"]): row for row in rows}


def _published(model: str) -> list[dict[str, str]]:
    every = csv.DictReader(LOOPS.open(encoding="utf-8"))
    return [row for row in every if row["model"] == model]


def loops_part(loops: dict[str, Any], title: str) -> str:
    """A measured server."""
    rows, lines = list(compared(loops)), [LOOPS_HEAD]
    for each in rows:
        row = each.row
        cells = [row["prompt"], row["output"], row["users"], f"{float(row['ttft_ms']):,.1f}"]
        cells += [f"{each.ttft:,.1f}", f"{each.ttft_error:+.0%}", f"{each.one_ttft:,.1f}"]
        cells += [f"{each.one_error:+.0%}", f"{float(row['tpot_ms']):,.1f}", f"{each.tpot:,.1f}"]
        cells += [f"{each.tpot_error:+.0%}", f"{each.cache:.0%}"]
        lines.append(f"| {' | '.join(cells)} |".replace("+nan%", "-").replace("nan", "-"))
    published = rows[0].row
    text = LOOPS_TEXT.format(
        **published,
        version=loops["engine"]["version"],
        number=len(rows),
        total=len(_published(loops["model"])),
        rounds=loops["rounds"],
        arguments=" ".join(loops["arguments"]),
        first=_median(each.ttft_error for each in rows),
        one=_one_prompt(rows, loops["beside_tokens"]),
        by_prompt=", ".join(
            f"{_median(each.ttft_error for each in rows if each.row['prompt'] == prompt):.0%} of "
            f"prompts of {prompt}"
            for prompt in dict.fromkeys(each.row["prompt"] for each in rows)
        ),
        each=_median(each.tpot_error for each in rows),
        e2e=_median(each.e2e_error for each in rows),
    )
    notes = notes_of(loops["model"])
    return "\n".join([f"### {title}", "", text, "", *lines, "", *notes])


def notes_of(model: str) -> list[str]:
    """What is written by hand of a server; empty: nothing."""
    path = HERE / f"closed_loops_{model}.txt"
    return ["", path.read_text(encoding="utf-8").strip()] if path.exists() else []


def _one_prompt(rows: list[Compared], beside: int) -> str:
    """The error of a server with one prompt a step, in a sentence's end."""
    known = [each for each in rows if not math.isnan(each.one_ttft)]
    if not known:
        return ""
    error = _median(each.one_error for each in known)
    return (
        f"; of {len(known)} rows **{error:.0%}** where a step has room for one prompt "
        f"(`--max-num-batched-tokens` of the prompt's length and {beside} more)"
    )


def _median(errors: Iterator[float]) -> float:
    return statistics.median([abs(error) for error in errors if error == error])


LOOPS_TEXT: Final = (
    "{model} on {tp} H100 SXM; measured with vLLM {vllm_version}, here with {version} and "
    "`{arguments}`. {number} of {total} rows were run. Median errors: time for each token after "
    "the first **{each:.0%}**, end to end **{e2e:.0%}**, time to the first token **{first:.0%}** "
    "({by_prompt}){one}. Each user has {rounds} "
    "requests, all begin at once, and all requests count. Times are means, in milliseconds."
)
LOOPS_HEAD: Final = (
    "| prompt | output | users | first, measured | here | error | one prompt a step | error "
    "| each, measured | here | error | cache |\n|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)
