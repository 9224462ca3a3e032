"""Starts vLLM 0.32 on the phantom as published starts of real GPUs, and writes the page.

    python -m benchmarks.serving.phantom_starts --python VENV/bin/python           # all rows
    python -m benchmarks.serving.phantom_starts --python VENV/bin/python --row 0   # one row
    python -m benchmarks.serving.phantom_starts --page                             # only the page

A row is the two starts of `ullage serve --cached`: a first one, and a later one with the compile
cache of the first. Both are kept, as few sources say which of the two they saw. What
another release counts differently, and this one can be told by its environment, it is told: which
model runner runs, and whether CUDA graphs are subtracted. Rows that need more are named on the page
with the reason. Each row replaces its entry in phantom_starts.json. Writes
docs/results/serving.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.provenance import made_by
from benchmarks.results import publish
from ullage.facts.families.architecture import read_model
from ullage.facts.families.find import find_config
from ullage.ground.units import GIB
from ullage.operate.serve.cache_bytes import RealCache, real_cache
from ullage.operate.serve.outcome import Engine, read_engine
from ullage.operate.serve.run import Program, check_command, made_ready
from ullage.operate.serve.traffic import load_traffic
from ullage.players.eager.serving.engines.vllm_releases import Runner, find_release

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent
STARTS: Final = HERE / "starts.toml"
RESULTS: Final = HERE / "phantom_starts.json"
TEXT: Final = HERE / "phantom_starts.txt"
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
    return ""


def settings(row: dict[str, Any]) -> tuple[list[str], str, dict[str, str]]:
    """The command, the GPU and the environment of a row."""
    words = iter(shlex.split(row["command"]))
    model = next(words)
    model = str(ROOT / model) if model.endswith(".json") else model
    command, gpu, version, share = ["vllm", "serve", model], "", "", ""
    for word in words:
        if word == "--cached":
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
    # NCCL's own logs of GPUs without NVLink have 2 channels (NVIDIA/nccl, issue 1817); the
    # phantom's upper bound has 32, whose buffers leave no room on an L4.
    channels = {"NCCL_MAX_NCHANNELS": "4"} if "--tensor-parallel-size" in command else {}
    return command, gpu, channels | {
        "VLLM_USE_V2_MODEL_RUNNER": str(int(runner is Runner.SECOND)),
        "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": str(int(release.counts_graphs(runner))),
    }  # fmt: skip


def start_twice(command: Sequence[str], *, gpu: str, python: str) -> tuple[Engine, Engine]:
    """The engine's own figures of a first start, and of one that finds its compile cache; no
    request is sent.
    """
    nothing = load_traffic("closed:users=1,requests=1,prompt=16,output=2")
    with made_ready(command, check_command(command), nothing, gpu) as task:
        program = Program(tuple(command), task.gpu, python, stdout_to_stderr=True)
        return program.start(task), program.start(task)


def start(row: dict[str, Any], python: str) -> dict[str, Any]:
    """The engine's own figures of both starts."""
    command, gpu, environment = settings(row)
    os.environ.update(environment)
    first, later = start_twice(command, gpu=gpu, python=python)
    words = [word.replace(f"{ROOT}/", "") for word in command]
    return {
        "command": " ".join(words),
        "gpu": gpu,
        "environment": environment,
        "first": asdict(first),
        "later": asdict(later),
    }


def result_of(row: dict[str, Any], results: dict[str, Any]) -> dict[str, Any] | None:
    """What was run for a row: also what another row of the same settings had run."""
    settled = settings(row)
    names = [other["name"] for other in load_rows() if not why_not(other)
             and settings(other) == settled]  # fmt: skip
    return next((results[name] for name in names if name in results), None)


@dataclass(frozen=True, slots=True)
class Line:
    """A start on the phantom beside what was printed.

    Attributes:
        name, kind: the row's name, and "first" or "later".
        printed_gib, cache: what was printed, and what it is on a real GPU by the phantom.
        width_share: of the interval, beside that of the estimate.
        text: the line of the table.
    """

    name: str
    kind: str
    printed_gib: float
    cache: RealCache
    width_share: float
    text: str

    @property
    def error(self) -> float:
        """Of the likely value, as a share of what was printed."""
        return self.cache.bytes / GIB / self.printed_gib - 1

    @property
    def is_inside(self) -> bool:
        """What was printed, rounded to hundredths of a GiB, is in the interval."""
        low, high = self.cache.low_bytes / GIB, self.cache.high_bytes / GIB
        return low - 0.005 <= self.printed_gib <= high + 0.005


def kinds_of(row: dict[str, Any]) -> tuple[str, ...]:
    """Which start the source says that it saw; both, where it says nothing."""
    if "--cached" in row["command"]:
        return ("later",)
    return (row["kind"],) if "kind" in row else ("first", "later")


def lines_of(row: dict[str, Any], result: dict[str, Any], width_gib: float) -> list[Line]:
    """The lines of a row, that which counts first."""
    return [line_of(row, kind, result, width_gib) for kind in kinds_of(row)]


def line_of(row: dict[str, Any], kind: str, result: dict[str, Any], width_gib: float) -> Line:
    """A line of the table."""
    engine = read_engine(result[kind])
    cache = real_cache(engine, result["gpu"])
    if cache is None:
        raise SystemExit(f"{row['name']}: {engine.num_blocks} blocks are not those of its bytes")
    more = uncounted_bytes(row, engine)
    cache = replace(
        cache, low_bytes=cache.low_bytes + more, bytes=cache.bytes + more,
        high_bytes=cache.high_bytes + more,
    )  # fmt: skip
    each = engine.block_bytes / engine.block_tokens
    printed = row["kv_gib"] if "kv_gib" in row else row["tokens"] * each / GIB
    low, likely, high = (size / GIB for size in (cache.low_bytes, cache.bytes, cache.high_bytes))
    line = Line(row["name"], kind, printed, cache, (high - low) / width_gib, "")
    is_counted = kind == kinds_of(row)[0]
    cells = (
        row["name"] if is_counted else "", f"{printed:.2f}" if is_counted else "", kind,
        f"{engine.kv_cache_bytes / GIB:.2f}", f"{more / GIB:.2f}" if more else "",
        f"{likely:.2f}", f"{line.error:+.1%}",
        f"{low:.2f} to {high:.2f}", "yes" if line.is_inside else "**no**" if is_counted else "no",
        f"{high - low:.2f}", f"{width_gib:.2f}" if is_counted else "",
        tokens_given_bytes(row, engine) if is_counted else "",
    )  # fmt: skip
    return replace(line, text=f"| {' | '.join(cells)} |")


def uncounted_bytes(row: dict[str, Any], engine: Engine) -> int:
    """What 0.32 counts of its second runner, and the row's release did not: the counts of tokens of
    each request, 32 bits for each word and a bit (see engines/vllm_releases.py, is_all_counted).
    """
    words = shlex.split(row["command"])
    release = find_release(words[words.index("--engine-version") + 1])
    name = str(ROOT / words[0]) if words[0].endswith(".json") else words[0]
    model = read_model(find_config(name).config)
    if release.is_all_counted or release.runner_of(model) is not Runner.SECOND:
        return 0
    counts = engine.max_num_seqs * model.vocab
    return counts * 4 + counts // 8


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
    "| Start | printed, GiB | start | phantom | not counted then | on a real GPU | error "
    "| interval | inside | width | width of the estimate | tokens of the printed bytes |\n"
    "|---|--:|---|--:|--:|--:|--:|---|---|--:|--:|---|"
)


def page(results: dict[str, Any]) -> str:
    """The page."""
    from benchmarks.serving.starts import ask

    held: list[list[Line]] = []
    others: list[list[Line]] = []
    left_out = []
    for row in load_rows():
        reason = why_not(row)
        result = None if reason else result_of(row, results)
        if result is None:
            left_out.append(f"- {row['name']}: {reason or 'not run'}.")
        else:
            lines = lines_of(row, result, ask(row).width_gib)
            (others if row.get("is_other") else held).append(lines)
    commands = [
        f"- {name}: `ullage serve --cached --gpu {result['gpu']} ... -- {result['command']}`, "
        + " ".join(f"`{key}={value}`" for key, value in result["environment"].items())
        for name, result in results.items()
    ]
    return TEXT.read_text(encoding="utf-8").format(
        made_by=made_by("benchmarks.serving.phantom_starts", torch="2.13.0"),
        version=next(iter(results.values()))["first"]["version"],
        held=table(held),
        held_summary=summary(held),
        others=table(others),
        others_summary=summary(others),
        explained="\n".join(f"- {explanation(lines)}" for lines in outside(held + others)),
        left_out="\n".join(left_out),
        commands="\n".join(commands),
    )


def outside(rows: list[list[Line]]) -> list[list[Line]]:
    """The rows whose counted start is outside its interval."""
    return [lines for lines in rows if not lines[0].is_inside]


def explanation(lines: list[Line]) -> str:
    """What a later start says of a row that is outside."""
    first = lines[0]
    text = (
        f"{first.name}: {first.printed_gib:.2f} GiB were printed, and a {first.kind} start leaves "
    )
    text += f"{first.cache.bytes / GIB:.2f}."
    if len(lines) == 1:
        return text
    later = lines[1]
    is_between = first.cache.bytes / GIB < first.printed_gib < later.cache.bytes / GIB
    where = (
        "so that it was likely one"
        if later.is_inside
        else "between the two"
        if is_between
        else "outside of both"
    )
    return (
        f"{text} Its source does not say which start it was; a later one leaves "
        f"{later.cache.bytes / GIB:.2f} ({later.cache.low_bytes / GIB:.2f} to "
        f"{later.cache.high_bytes / GIB:.2f}), {where}."
    )


def table(rows: list[list[Line]]) -> str:
    """All lines of some rows."""
    return "\n".join([HEAD, *(line.text for lines in rows for line in lines)])


def summary(rows: list[list[Line]]) -> str:
    """The aggregate, in sentences."""
    if not rows:
        return "None was run."
    counted = [lines[0] for lines in rows]
    errors = [abs(line.error) for line in counted]
    share = statistics.median(line.width_share for line in counted)
    missed = outside(rows)
    text = (
        f"Error of the likely value: median {statistics.median(errors):.1%}, worst "
        f"{max(errors):.1%}; {len(rows) - len(missed)} of {len(rows)} inside the interval, which "
        f"is in the median {share:.0%} as wide as that of `ullage estimate`."
    )
    if missed:
        others = sum(any(line.is_inside for line in lines[1:]) for lines in missed)
        text += f" Of the {len(missed)} outside, {others} lie in the interval of a later start."
    return text


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
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    if results:
        publish("serve-starts", page(results))


if __name__ == "__main__":
    main()
