"""Searches a server for some traffic with the real engine, and writes docs/results/estimates.md.

    python -m benchmarks.serving.search --python VENV/bin/python               # all (minutes)
    python -m benchmarks.serving.search --python VENV/bin/python --name chat
    python -m benchmarks.serving.search                                        # only the page

The documents of the searches are in search.json. The interpreter has vLLM 0.32.0.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.provenance import made_by, torch_version
from benchmarks.results import publish

HERE: Final = Path(__file__).resolve().parent
RESULTS: Final = HERE / "search.json"
SEARCHES: Final[dict[str, tuple[str, ...]]] = {
    "chat": (
        "smallest", "--gpu", "l4,l40s,a100-80gb,h100-80gb", "--allow", "fp8-cache",
        "--traffic", "azure-conv:rate=3,duration=5m", "--slo", "ttft=1s,tpot=50ms",
    ),
    "more chat": (
        "smallest", "--gpu", "l40s", "--traffic", "azure-conv:rate=3.5,duration=4m",
        "--slo", "ttft=2s,tpot=50ms",
    ),
    "long prompts": (
        "smallest", "--gpu", "h100-80gb", "--traffic",
        "poisson:rate=3,prompt=6000,output=300,spread=0.5,duration=3m", "--slo",
        "ttft=5s,tpot=30ms",
    ),
}  # fmt: skip
COMMAND: Final = ("vllm", "serve", "llama-3.1-8b", "--enforce-eager")
HEADS: Final = (
    "| server | tokens, forecast | tokens | within the objective, forecast | "
    "within the objective | |"
)
_ULLAGE: Final = (sys.executable, "-c", "from ullage.cli import main; main()")


def search(words: tuple[str, ...], python: str) -> dict[str, Any]:
    """The document of one search."""
    output = HERE / "search.out.json"
    output.unlink(missing_ok=True)
    subprocess.run(
        [
            *_ULLAGE, *words, "-o", str(output), "--python", python, "--",
            *COMMAND,
        ],
        check=False,
    )  # fmt: skip
    document: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    output.unlink()
    return {"torch": torch_version(Path(python)), "document": document}


def page(results: dict[str, Any]) -> str:
    """The page."""
    torch = next(iter(results.values()))["torch"]
    parts = ["# Searches for a server", made_by("benchmarks.serving.search", torch=torch)]
    for name, result in results.items():
        parts += part(name, result["document"])
    return "\n\n".join(parts) + "\n"


def part(name: str, document: dict[str, Any]) -> Iterator[str]:
    """One search."""
    best, number = document["best"], document["traffic"]["num_requests"]
    yield f"## {name.capitalize()}"
    yield f"`ullage {shlex.join(SEARCHES[name])} -- {shlex.join(COMMAND)}`: {number:,} requests."
    if best is None:
        yield "No server that was run holds the objective."
    else:
        yield (
            f"{best['num_gpus']} x {best['gpu']} holds it: {100 * best['goodput_frac']:.1f} % of "
            f"the requests within the objective in a run of this command, in virtual time, with "
            f"{best['num_preemptions']:,} preemptions; by the forecast it holds "
            f"{document['capacity']:.1f} times the rate.\n\n```text\n{shlex.join(best['words'])}"
            "\n```"
        )
    yield _runs(document["runs"])
    yield _judged(document["judged"])
    if document["worths"]:
        yield _worths(document["worths"])


def _runs(runs: list[dict[str, Any]]) -> str:
    rows = [
        "What was run:", "", HEADS, "|---|--:|--:|--:|--:|---|",
    ]  # fmt: skip
    for run in runs:
        state = "holds" if run["is_held"] else run["problem"] or "does not hold"
        rows.append(
            f"| {run['num_gpus']} x {run['gpu']} | {run['forecast_tokens']:,} | {run['tokens']:,} |"
            f" {100 * run['forecast_frac']:.1f} % | {100 * run['goodput_frac']:.1f} % | {state} |"
        )
    return "\n".join(rows)


def _judged(judged: list[dict[str, Any]]) -> str:
    rows = [
        "What closed forms said:", "", "| server | flags | tokens | within the objective |",
        "|---|---|--:|--:|",
    ]  # fmt: skip
    for row in judged:
        good = row["reason"] or f"{100 * row['goodput_frac']:.1f} %"
        flags = " ".join(row["flags"])
        rows.append(
            f"| {row['num_gpus']} x {row['gpu']} | `{flags}` | {row['tokens']:,} | {good} |"
        )
    return "\n".join(rows)


def _worths(worths: list[dict[str, Any]]) -> str:
    rows = [
        "What each flag is worth, by closed forms:", "",
        "| flag | | tokens | within the objective |", "|---|---|--:|--:|",
    ]  # fmt: skip
    for row in worths:
        state = "left out" if row["is_taken"] else "added"
        rows.append(
            f"| `{row['flag']}` | {state} | {100 * (row['tokens_frac'] - 1):+.0f} % | "
            f"{100 * row['goodput_frac']:.1f} % |"
        )
    return "\n".join(rows)


def main() -> None:
    """Searches where an interpreter is given, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", help="interpreter with vLLM; without it only the page")
    parser.add_argument("--name", choices=SEARCHES, action="append")
    words = parser.parse_args()
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for name in (words.name or SEARCHES) if words.python else ():
        results[name] = search(SEARCHES[name], words.python)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if results:
        publish("serve-search", page(results))


if __name__ == "__main__":
    main()
