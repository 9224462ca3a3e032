"""Measure what a guard costs while no step fails, and write docs/results/guard-overhead.md.

    python -m benchmarks.guard.overhead --python .envs/torch-newest/bin/python

The GPU is the bare phantom. Ends with exit code 1 where the cost is above what was asked for.
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.provenance import made_by, torch_version
from benchmarks.recording.bare import ROOT, bare_environment
from ullage.protocol import variables

PAGE = ROOT / "docs" / "results" / "guard-overhead.md"
PROGRAM = Path(__file__).with_name("overhead_program.py")
CALLS = Path(__file__).with_name("overhead_calls_program.py")
ROUNDS, ROUNDS_OF_CALLS = 200, 100
MOST_PERCENT = 0.5
NAMES = {
    "guard": "`ullage.guard`, one process",
    "calls": "`exec --guard`, `ullage.guard_model`, one process",
    "calls ranks": "`exec --guard`, DDP on 2 ranks",
    "steps ranks": "`ullage.guard`, DDP on 2 ranks",
}
COLUMNS = (
    "guard", "a step without, ms", "the same again (quartiles)", "with the guard",
    "its own work, us", "of the step",
)  # fmt: skip
Documents = dict[str, dict[str, Any]]


def measure(python: Path) -> Documents:
    """Runs the programs on the bare phantom."""
    environment = bare_environment(python)
    words = [str(ROOT / "src"), str(ROUNDS)]
    documents = {"guard": run([[str(python), str(PROGRAM), *words]], [environment])}
    words = [str(python), str(CALLS), str(ROOT / "src"), str(ROUNDS_OF_CALLS)]
    documents["calls"] = run([[*words, "calls"]], [environment])
    for kind in ("calls", "steps"):
        ranks = [environment | each for each in rank_variables(2)]
        documents[f"{kind} ranks"] = run([[*words, kind]] * 2, ranks)
    return documents


def rank_variables(count: int) -> list[dict[str, str]]:
    """What a launcher sets for each rank."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    common = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
              variables.NUM_DEVICES: str(count)}  # fmt: skip
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


def run(programs: list[list[str]], environments: list[dict[str, str]]) -> dict[str, Any]:
    """What the first of some programs that run together prints."""
    children = [
        subprocess.Popen(
            words, env={**environment, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        for words, environment in zip(programs, environments, strict=True)
    ]  # fmt: skip
    outputs = [child.communicate()[0] for child in children]
    if any(child.returncode for child in children):
        sys.exit(f"a program ended with {[child.returncode for child in children]}")
    document: dict[str, Any] = json.loads(outputs[0].splitlines()[-1])
    return document


def median(document: dict[str, Any], name: str) -> float:
    """Of the rounds, in milliseconds."""
    return statistics.median(times[name] for times in document["rounds"])


def percents(document: dict[str, Any], name: str) -> tuple[float, float, float]:
    """By how much a way is above the step without a guard of the same round: quartiles."""
    ratios = [100 * (times[name] / times["off"] - 1) for times in document["rounds"]]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return low, middle, high


def own_percent(document: dict[str, Any]) -> float:
    """What the guard does for a step, of the step: the median of the rounds' ratios."""
    return statistics.median(100 * times["own"] / times["off"] for times in document["rounds"])


def row(name: str, document: dict[str, Any]) -> str:
    """A line of the table."""
    noise, guarded = (percents(document, way) for way in ("off_again", "guarded"))
    return (
        f"| {NAMES[name]} | {median(document, 'off'):.2f} | "
        f"{noise[1]:+.1f} % ({noise[0]:+.1f} to {noise[2]:+.1f}) | "
        f"{guarded[1]:+.1f} % ({guarded[0]:+.1f} to {guarded[2]:+.1f}) | "
        f"{1e3 * median(document, 'own'):.0f} | {own_percent(document):.2f} % |"
    )


def verdict(documents: Documents) -> str:
    """Which rows have what was asked for."""
    above = [NAMES[name] for name, each in documents.items() if own_percent(each) > MOST_PERCENT]
    if not above:
        return "Every row has that."
    return f"Above it: {'; '.join(above)}."


def page(documents: Documents, torch: str) -> str:
    """The page."""
    ranks = documents["steps ranks"]
    return "\n".join(
        [
            "# What a guard costs while no step fails",
            "",
            made_by("benchmarks.guard.overhead --python ENV/bin/python", torch=torch),
            "",
            "GPT-2 124M of examples/gpt2, one sequence of 1,024 tokens, bfloat16 autocast, AdamW,",
            f"{documents['guard']['parameters']} parameters, on the bare phantom, whose own work",
            "is in every step. CPU time of the host for a step, of one process, of two ranks the",
            f"first; medians of {ROUNDS} rounds (first row) or {ROUNDS_OF_CALLS}, each with every",
            "way, in one run. The ranks are in DistributedDataParallel with the phantom's NCCL.",
            "",
            f"| {' | '.join(COLUMNS)} |",
            "|---|---|---|---|---|---|",
            *(row(name, document) for name, document in documents.items()),
            "",
            "The whole steps differ by less than their noise, so the guard's own work is measured",
            "by itself: what it notes of counters, gradients, generators, attributes and buffers,",
            "the joint of the graphs and the second part of backward (as the difference of steps",
            "whose forward and backward compute nothing), and in the last row the function before",
            f"each of {median(ranks, 'collectives'):.0f} collectives and two votes, for which a",
            f"rank waits: {1e3 * median(ranks, 'clock'):.0f} us by the clock. Under `exec --guard`",
            f"there are no votes. At most {MOST_PERCENT} % was asked for. {verdict(documents)}",
            "",
        ]
    )


def main() -> int:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", type=Path, required=True, metavar="PATH")
    python = parser.parse_args().python.absolute()
    documents = measure(python)
    PAGE.write_text(page(documents, torch_version(python)), encoding="utf-8")
    print(f"Wrote {PAGE.relative_to(ROOT)}")
    return int(any(own_percent(document) > MOST_PERCENT for document in documents.values()))


if __name__ == "__main__":
    sys.exit(main())
