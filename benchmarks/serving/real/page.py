"""Writes docs/results/serve.md from phantom.json and what was recorded.

write_page(results)
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

import ullage
from benchmarks.provenance import made_by
from benchmarks.results import publish
from benchmarks.serving.real.host import HostFigures, read_host
from ullage.facts.families.architecture import read_model
from ullage.facts.families.find import find_config
from ullage.facts.families.kv_cache import token_bytes
from ullage.ground.units import GIB
from ullage.operate.serve.forecast.forecast import Forecast

__all__ = ["PHANTOM", "SERVERS", "write_page"]

HERE: Final = Path(__file__).resolve().parent
SERVERS: Final = HERE / "servers.json"
PHANTOM: Final = HERE / "phantom.json"
RECORDED: Final = HERE / "h100-vllm-0.26.0"
KERNELS_BYTES: Final = 80 << 20
"""What `ullage serve` takes off for the code of kernels, with 48 to 256 MiB as its bounds."""
_BOUNDS_BYTES: Final = (256 << 20, 48 << 20)
_ASKED: Final = {"ttft_s": 0.25, "tpot_s": 0.15, "e2e_s": 0.15}
_WARM: Final = "warm"


class Load(NamedTuple):
    """Means of a load, in seconds, as they were measured."""

    name: str
    number: int
    ttft_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    tpot_s: float
    e2e_s: float
    num_preemptions: int


def read_loads(server: dict[str, Any]) -> dict[str, Load]:
    """What was measured of each load of a server."""
    with np.load(RECORDED / f"{server['name']}.npz") as file:
        columns = {name: file[name] for name in file.files}
    return {
        load["name"]: _read_load(load["name"], columns, columns["load"] == place)
        for place, load in enumerate(server["loads"])
    }


def _read_load(name: str, columns: dict[str, Any], is_of: Any) -> Load:
    sent, first, last = (columns[f"{name}_s"][is_of] for name in ("sent", "first", "last"))
    gaps = columns["output_tokens"][is_of] - 1
    moments = columns["schedule_s"][:, 0]
    steps = (moments >= sent.min()) & (moments <= last.max())
    return Load(
        name, int(is_of.sum()), float(np.mean(first - sent)), float(np.median(first - sent)),
        float(np.percentile(first - sent, 90)),
        float(np.mean(((last - first) / np.where(gaps > 0, gaps, np.nan))[gaps > 0])),
        float(np.mean(last - sent)), int(columns["schedule"][steps, 5].sum()),
    )  # fmt: skip


def write_page(results: dict[str, Any]) -> None:
    """Writes the page."""
    servers = [
        server for server in json.loads(SERVERS.read_text(encoding="utf-8"))
        if server["name"] in results
    ]  # fmt: skip
    engine = results[servers[0]["name"]]["engine"]
    parts = [
        "# `ullage serve` against a real server",
        made_by("benchmarks.serving.real", torch="2.11.0+cu130"),
        INTRODUCTION.format(version=engine["version"]),
        "## Bytes and tokens of the cache", STARTS, starts_table(servers, results),
        STARTS_NOTE,
        "## Latencies", *latencies(servers, results),
        "## The forecast without the engine", forecast_part(servers),
        "## What the host takes", host_part(results), NOT_COVERED,
    ]  # fmt: skip
    publish("serve-real", "\n\n".join(parts) + "\n")


INTRODUCTION: Final = (
    "Recorded on 2026-11-27 on one NVIDIA H100 80GB HBM3, driver 580.159.04, a virtual machine "
    "with 16 cores of an Intel Xeon: vLLM {version} with torch 2.11.0+cu130, its HTTP server "
    "and a client on the same machine, Llama 3.1 8B with dummy weights. Prompts are text, "
    "answers are streamed, and a plugin wrote down every turn of the scheduler. What is "
    "compared is the same version with the same flags on the phantom. The recordings are in "
    "`benchmarks/serving/real` ([how they are made](../../benchmarks/serving/real/record.py))."
)
STARTS: Final = (
    "What vLLM prints. *on a real GPU* is what `ullage serve` says: less by the code of kernels, "
    "likely 80 MiB, 48 to 256. Nothing here was fitted to these starts. The third server found the "
    "compile cache of the first, and so did the phantom's (`--cached`)."
)
STARTS_NOTE: Final = (
    "CUDA graphs took 0.98 GiB of the real GPU; the phantom counts them at the upper bound of "
    "[what was measured](accuracy.md#device-memory-of-cuda-graphs), and so somewhat more."
)


STARTS_HEAD: Final = (
    "| server | printed, GiB | phantom | on a real GPU | error | inside | tokens printed "
    "| phantom |\n|---|--:|--:|--:|--:|---|--:|--:|"
)


class Start(NamedTuple):
    """A start, in bytes: what vLLM printed, and what it is on a real GPU by the phantom."""

    server: dict[str, Any]
    printed: float
    tokens: int
    engine: dict[str, Any]

    @property
    def interval(self) -> tuple[int, int, int]:
        """Bytes for the cache: low, likely, high."""
        size = self.engine["kv_cache_bytes"]
        low, high = (size - bound for bound in _BOUNDS_BYTES)
        return low, size - KERNELS_BYTES, high

    @property
    def is_inside(self) -> bool:
        """What was printed is in the interval."""
        return self.interval[0] <= self.printed <= self.interval[2]


def read_starts(servers: list[dict[str, Any]], results: dict[str, Any]) -> Iterator[Start]:
    """What was printed beside what the phantom's engine says."""
    for server in servers:
        log = (RECORDED / f"{server['name']}.log").read_text(encoding="utf-8")
        printed = float(_found(r"Available KV cache memory: ([\d.]+) GiB", log)) * GIB
        tokens = int(_found(r"GPU KV cache size: ([\d,]+) tokens", log).replace(",", ""))
        yield Start(server, printed, tokens, results[server["name"]]["engine"])


def starts_table(servers: list[dict[str, Any]], results: dict[str, Any]) -> str:
    """Bytes and tokens."""
    rows = [STARTS_HEAD]
    for start in read_starts(servers, results):
        likely, engine = start.interval[1], start.engine
        rows.append(
            f"| {' '.join(start.server['flags'])} | {start.printed / GIB:.2f} "
            f"| {engine['kv_cache_bytes'] / GIB:.2f} | {likely / GIB:.2f} "
            f"| {likely / start.printed - 1:+.1%} | {'yes' if start.is_inside else '**no**'} "
            f"| {start.tokens:,} | {engine['kv_cache_tokens']:,} |"
        )
    return "\n".join(rows)


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise SystemExit(f"a recorded log has nothing like {pattern}")
    return match[1]


class Served(NamedTuple):
    """A measured load, and what the phantom says of it with the host's time and without."""

    server: str
    load: Load
    row: dict[str, Any]
    bare: dict[str, Any]


def read_served(servers: list[dict[str, Any]], results: dict[str, Any]) -> Iterator[Served]:
    """The loads that count: all but those that warm a server up."""
    for server in servers:
        loads, result = read_loads(server), results[server["name"]]
        for row, bare in zip(result["rows"], result["without_host"], strict=True):
            if row["name"] != _WARM:
                yield Served(server["name"], loads[row["name"]], row, bare)


def latencies(servers: list[dict[str, Any]], results: dict[str, Any]) -> Iterator[str]:
    """A table, and its errors."""
    errors: dict[str, list[float]] = {name: [] for name in _ASKED}
    without: dict[str, list[float]] = {name: [] for name in _ASKED}
    rows = [LATENCY_HEAD]
    for server, load, row, bare in read_served(servers, results):
        rows.append(latency_row(server, load, row))
        for name in _ASKED:
            measured = getattr(load, name)
            errors[name].append(row[name] / measured - 1)
            without[name].append(bare[name] / measured - 1)
    medians = {name: _median(values) for name, values in errors.items()}
    yield LATENCIES.format(
        number=len(errors["ttft_s"]), **medians,
        worst=max(abs(value) for value in errors["ttft_s"]),
        **{f"bare_{name}": _median(values) for name, values in without.items()},
    )  # fmt: skip
    yield "\n".join(rows)


def _median(values: list[float]) -> float:
    return statistics.median(abs(value) for value in values)


LATENCIES: Final = (
    "{number} loads; means over all requests in milliseconds, measured / on the phantom. Names "
    "say users, tokens of prompts and of answers; *conv* is `azure-conv` at 20 requests a "
    "second. Median errors: time to the first token **{ttft_s:.0%}** (worst {worst:.0%}), for "
    "each token after it **{tpot_s:.0%}**, end to end **{e2e_s:.0%}**. Without the host's time "
    "(`host_time` is none in `ullage.toml`): {bare_ttft_s:.0%}, {bare_tpot_s:.0%}, "
    "{bare_e2e_s:.0%}. The host's figures were read off these runs "
    "([below](#what-the-host-takes)), none of them off a latency; the device's "
    "are the clock's own. Blind figures, of another server: "
    "[serve.md](serve.md#measured-servers)."
)
LATENCY_HEAD: Final = (
    "| server | load | first | error | first p50 | first p90 | each | error | end to end | error "
    "| preemptions |\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)


def latency_row(server: str, load: Load, row: dict[str, Any]) -> str:
    """Measured beside simulated."""
    cells = [server, load.name]
    for name, digits in (("ttft_s", 0), ("ttft_p50_s", 0), ("ttft_p90_s", 0), ("tpot_s", 1)):
        measured, ours = getattr(load, name), row[name]
        cells.append(f"{1e3 * measured:,.{digits}f} / {1e3 * ours:,.{digits}f}")
        if name in _ASKED:
            cells.append(f"{ours / measured - 1:+.0%}")
    cells += [
        f"{1e3 * load.e2e_s:,.0f} / {1e3 * row['e2e_s']:,.0f}",
        f"{row['e2e_s'] / load.e2e_s - 1:+.0%}",
        f"{load.num_preemptions} / {row['num_preemptions']}",
    ]
    return f"| {' | '.join(cells)} |"


def forecast_of(server: dict[str, Any], traffic: str) -> Forecast:
    """The forecast of traffic at the server whose number of blocks is given, of 16 tokens each."""
    flags = server["flags"]
    context, blocks = (
        int(flags[flags.index(flag) + 1])
        for flag in ("--max-model-len", "--num-gpu-blocks-override")
    )
    layers = read_model(find_config(server["model"]).config).layers
    found = ullage.capacity(
        server["model"], gpu="h100-80gb", traffic=traffic, context=context,
        has_prefix_caching="--no-enable-prefix-caching" not in flags,
        kv_bytes=blocks * 16 * sum(token_bytes(layer) for layer in layers),
    )  # fmt: skip
    if not isinstance(found.estimate, Forecast):
        raise TypeError(f"found {found!r}, expected a forecast")
    return found.estimate


def forecast_part(servers: list[dict[str, Any]]) -> str:
    """Preemptions and first tokens by `ullage capacity`, of the server with the small cache."""
    server = next(server for server in servers if "--num-gpu-blocks-override" in server["flags"])
    load = server["loads"][-1]
    measured = read_loads(server)[load["name"]]
    forecast = forecast_of(server, load["traffic"])
    first_s = forecast.simulated.first_token_s - forecast.simulated.arrival_s
    return FORECAST.format(
        flags=" ".join(server["flags"]), traffic=load["traffic"], ours=forecast.num_preemptions,
        measured=measured.num_preemptions,
        error=forecast.num_preemptions / measured.num_preemptions - 1,
        p50=1e3 * float(np.nanmedian(first_s)), measured_p50=1e3 * measured.ttft_p50_s,
        p90=1e3 * float(np.nanpercentile(first_s, 90)), measured_p90=1e3 * measured.ttft_p90_s,
    )  # fmt: skip


FORECAST: Final = (
    "`ullage capacity --traffic {traffic}` with `{flags}`; the forecast is older than the "
    "recording: **{ours} preemptions** where the real server had {measured} ({error:+.0%}); time "
    "to the first token p50 {p50:,.0f} ms ({measured_p50:,.0f} measured), p90 {p90:,.0f} ms "
    "({measured_p90:,.0f})."
)


def host_part(results: dict[str, Any]) -> str:
    """How each figure of MEASURED was read off."""
    prefill = results["llama"]["step_times"]["prefill"]
    pieces = list(zip(prefill["tokens"], prefill["launches"], strict=True))

    def launches(tokens: int) -> int:
        return next((number for size, number in pieces if size >= tokens), pieces[-1][1])

    return HOST.format(**_texts(read_host(RECORDED / "llama.npz", launches), pieces[-1][1]))


def _texts(host: HostFigures, pieces: int) -> dict[str, str]:
    bursts = "; ".join(
        f"{burst.number} of {burst.tokens:,} tokens in {1e3 * burst.seconds:.0f} ms"
        for burst in host.bursts
    )
    low, high = (f"{1e6 * value:.0f}" for value in host.launch_spread_s)
    return {
        "step": f"{1e6 * host.step_s:.0f}", "request": f"{1e6 * host.request_s:.0f}",
        "steps": f"{host.num_steps:,}", "launch": f"{1e6 * host.launch_s:.0f}", "low": low,
        "high": high, "launches": str(host.num_launches), "pieces": str(pieces), "bursts": bursts,
        "http": f"{1e3 * host.http_s:.1f}", "prompt": f"{1e6 * host.prompt_token_s:.1f}",
        "answer": f"{1e6 * host.answer_token_s:.0f}",
    }  # fmt: skip


HOST: Final = (
    "From the clocks of the first server, with asynchronous scheduling "
    "([host.py](../../benchmarks/serving/real/host.py)); `ullage serve` takes them rounded.\n"
    "\n"
    "- **Loop**: {step} us to schedule a step and to take its tokens in, and {request} us for "
    "each request in it (least squares over {steps} steps).\n"
    "- **Launches**: {launch} us for each kernel or graph (median of {launches} steps with "
    "prompts; deciles {low} and {high}). The phantom counts them: {pieces} in a step with "
    "prompts beyond the sizes of graphs, which is 30 ms in which the loop takes no requests.\n"
    "- **HTTP server**: where many requests are sent at once, it took {bursts} to the engine; by "
    "least squares {http} ms and {prompt} us for each token.\n"
    "- **Streaming**: the last token of an answer comes {answer} us later for each request "
    "whose token is streamed before it; half is taken for the server, which is an assumption.\n"
)
NOT_COVERED: Final = (
    "## What this does not show\n"
    "\n"
    "One GPU, one processor, one version, one model, one process for HTTP, no other client, "
    "two minutes of traffic, no prefix cache. The plugin and the client cost time themselves, and "
    "are in the figures."
)
