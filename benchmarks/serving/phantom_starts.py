"""Starts vLLM 0.32 on the phantom as published starts of real GPUs, and writes the page.

    python -m benchmarks.serving.phantom_starts --python VENV/bin/python           # all rows
    python -m benchmarks.serving.phantom_starts --python VENV/bin/python --row 0   # one row
    python -m benchmarks.serving.phantom_starts --page                             # only the page

A start is `ullage serve` with one small request. What another release counts differently, and this
one can be told by its environment, it is told: which model runner runs, and whether CUDA graphs are
subtracted. Rows that need more are named on the page with the reason. Each row replaces its entry
in phantom_starts.json. Writes docs/results/serve-starts.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import tomllib
from pathlib import Path
from typing import Any, Final

from benchmarks.provenance import made_by
from ullage.api.serving import serve_traffic
from ullage.estimate.serving.engines.vllm_releases import Runner, find_release
from ullage.models.architecture import read_model
from ullage.models.find import find_config
from ullage.serve.cache_bytes import real_cache
from ullage.serve.outcome import Engine
from ullage.units import GIB

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent
PAGE: Final = ROOT / "docs" / "results" / "serve-starts.md"
STARTS: Final = HERE / "starts.toml"
RESULTS: Final = HERE / "phantom_starts.json"
TEXT: Final = HERE / "phantom_starts.txt"
TRAFFIC: Final = "closed:users=1,requests=1,prompt=16,output=2"
OPTIONS: Final = {
    "--context": "--max-model-len", "--utilization": "--gpu-memory-utilization",
    "--max-seqs": "--max-num-seqs", "--batched-tokens": "--max-num-batched-tokens",
    "--tensor": "--tensor-parallel-size",
}  # fmt: skip
FIRST_WITH_THIS_SAMPLER: Final = (0, 17)
"""The first release whose trial step filters in place, as 0.32's does; earlier ones sort."""


def load_rows() -> list[dict[str, Any]]:
    """The published starts, with what was told of each (see starts.toml)."""
    rows: list[dict[str, Any]] = tomllib.loads(STARTS.read_text(encoding="utf-8"))["start"]
    return rows


def why_not(row: dict[str, Any]) -> str:
    """Why vLLM 0.32 cannot say the same; empty: it can."""
    words = shlex.split(row["command"])
    version = words[words.index("--engine-version") + 1]
    if find_release(version).since < FIRST_WITH_THIS_SAMPLER:
        return f"its trial step sorts all logits (vLLM {version}), which no option brings back"
    if "--memory" in words:
        return "the GPU under WSL2 has another size than the catalogue's"
    if "--cached" in words:
        return "a start on the phantom has no compile cache yet"
    return ""


def settings(row: dict[str, Any]) -> tuple[list[str], str, dict[str, str]]:
    """The command, the GPU and the environment of a row."""
    words = iter(shlex.split(row["command"]))
    model = next(words)
    model = str(ROOT / model) if model.endswith(".json") else model
    command, gpu, version, share = ["vllm", "serve", model], "", "", ""
    for word in words:
        if word == "--serve":
            continue
        value = next(words)
        if word == "--gpu":
            gpu = value
        elif word == "--engine-version":
            version = value
        elif word in OPTIONS:
            command += [OPTIONS[word], value]
            share = value if word == "--utilization" else share
        else:
            raise SystemExit(f"{row['name']}: {word} is not known here")
    release = find_release(version)
    if not share:
        command += ["--gpu-memory-utilization", f"{release.utilization:g}"]
    runner = release.runner_of(read_model(find_config(model).config))
    return command, gpu, {
        "VLLM_USE_V2_MODEL_RUNNER": str(int(runner is Runner.SECOND)),
        "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": str(int(release.counts_graphs(runner))),
    }  # fmt: skip


def start(row: dict[str, Any], python: str) -> dict[str, Any]:
    """The engine's own figures of a start."""
    command, gpu, environment = settings(row)
    os.environ.update(environment)
    run = serve_traffic(command, TRAFFIC, gpu=gpu, python=python, stdout_to_stderr=True)
    words = [word.replace(f"{ROOT}/", "") for word in command]
    return {
        "command": " ".join(words),
        "gpu": gpu,
        "environment": environment,
        "engine": run.document["engine"],
        "start_s": run.outcome.real_s["start_s"],
    }


def table_row(row: dict[str, Any], result: dict[str, Any], width_gib: float) -> dict[str, Any]:
    """A line of the table, and the figures of the summary."""
    fields = result["engine"]
    engine = Engine(**{**fields, "ignored": tuple(fields["ignored"])})
    cache = real_cache(engine)
    if cache is None:
        raise SystemExit(f"{row['name']}: {engine.num_blocks} blocks are not those of its bytes")
    each = engine.block_bytes / engine.block_tokens
    printed = row["kv_gib"] if "kv_gib" in row else row["tokens"] * each / GIB
    low, likely, high = (size / GIB for size in (cache.low_bytes, cache.bytes, cache.high_bytes))
    # What is printed is rounded to hundredths of a GiB.
    inside = low - 0.005 <= printed <= high + 0.005
    cells = (
        row["name"], f"{printed:.2f}", f"{engine.kv_cache_bytes / GIB:.2f}", f"{likely:.2f}",
        f"{likely / printed - 1:+.1%}", f"{low:.2f} to {high:.2f}", "yes" if inside else "**no**",
        f"{high - low:.2f}", f"{width_gib:.2f}", tokens_given_bytes(row, engine),
    )  # fmt: skip
    return {
        "text": f"| {' | '.join(cells)} |", "error": abs(likely / printed - 1), "inside": inside,
        "share": (high - low) / width_gib,
    }  # fmt: skip


def tokens_given_bytes(row: dict[str, Any], engine: Engine) -> str:
    """Whether the printed tokens are whole blocks of this start in the printed bytes, which are
    rounded.
    """
    if "kv_gib" not in row or "tokens" not in row:
        return "-"
    low, high = (
        int((row["kv_gib"] + by) * GIB) // engine.block_bytes * engine.block_tokens
        for by in (-0.005, 0.005)
    )
    return "yes" if low <= row["tokens"] <= high else f"**no**: {low:,} to {high:,}"


HEAD: Final = (
    "| Start | printed, GiB | phantom | on a real GPU | error | interval | inside | width "
    "| width of the estimate | tokens of the printed bytes |\n"
    "|---|--:|--:|--:|--:|---|---|--:|--:|---|"
)


def page(results: dict[str, Any]) -> str:
    """The page."""
    from benchmarks.serving.starts import ask

    rows = [row for row in load_rows() if row["name"] in results]
    lines = {
        row["name"]: table_row(row, results[row["name"]], ask(row).width_gib) for row in rows
    }  # fmt: skip
    held = [lines[row["name"]] for row in rows if not row.get("is_other")]
    others = [lines[row["name"]] for row in rows if row.get("is_other")]
    left_out = [
        f"- {row['name']}: {why_not(row) or 'not run'}."
        for row in load_rows()
        if row["name"] not in results
    ]
    commands = [
        f"- {name}: `ullage serve --gpu {result['gpu']} ... -- {result['command']}`, "
        + " ".join(f"`{key}={value}`" for key, value in result["environment"].items())
        + f"; {result['start_s']:.0f} s to start"
        for name, result in results.items()
    ]
    return TEXT.read_text(encoding="utf-8").format(
        made_by=made_by("benchmarks.serving.phantom_starts", torch="2.13.0"),
        version=next(iter(results.values()))["engine"]["version"],
        held="\n".join([HEAD, *(line["text"] for line in held)]),
        held_summary=summary(held),
        others="\n".join([HEAD, *(line["text"] for line in others)]),
        others_summary=summary(others),
        left_out="\n".join(left_out),
        commands="\n".join(commands),
    )


def summary(lines: list[dict[str, Any]]) -> str:
    """The aggregate, in a sentence."""
    if not lines:
        return "None was run."
    errors = [line["error"] for line in lines]
    share = statistics.median(line["share"] for line in lines)
    return (
        f"Error of the likely value: median {statistics.median(errors):.1%}, worst "
        f"{max(errors):.1%}; {sum(line['inside'] for line in lines)} of {len(lines)} inside the "
        f"interval, which is in the median {share:.0%} as wide as that of `ullage estimate`."
    )


def main() -> None:
    """Runs the rows, and writes the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", help="of an environment with vLLM 0.32")
    parser.add_argument("--row", type=int, action="append", help="of starts.toml, from 0")
    parser.add_argument("--page", action="store_true", help="run nothing")
    args = parser.parse_args()
    rows = load_rows()
    numbers = [] if args.page else args.row or range(len(rows))
    for number in numbers:
        row = rows[number]
        if why_not(row):
            continue
        result = start(row, args.python)
        results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
        results[row["name"]] = result
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    if results:
        PAGE.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
