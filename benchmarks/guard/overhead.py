"""Measure what a guard costs while no step fails, and write docs/results/guard.md.

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
from benchmarks.results import publish
from ullage.ground.protocol import variables

PROGRAM = Path(__file__).with_name("overhead_program.py")
ROUNDS = 16
MOST_PERCENT = 0.5
# By how many ranks the model is trained.
NAMES = {1: "`ullage.guard`, one process", 2: "`ullage.guard`, DDP on 2 ranks"}
COLUMNS = (
    "guard", "a step without, ms", "the same again", "with the guard", "the guard's own work, us",
    "half of the rounds", "of the step", "by the clock, us",
)  # fmt: skip
Documents = dict[int, dict[str, Any]]


def measure(python: Path, num_ranks: int) -> dict[str, Any]:
    """Runs the program on the bare phantom."""
    ranks = rank_variables(num_ranks) if num_ranks > 1 else [{}]
    words = [str(python), str(PROGRAM), str(ROOT / "src"), str(ROUNDS)]
    environment = bare_environment(python)
    return run([words] * num_ranks, [environment | each for each in ranks])


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


def percent(document: dict[str, Any], name: str) -> float:
    """By how much whole steps of a way are above those without a guard of the same round."""
    return statistics.median(100 * (t[name] / t["off"] - 1) for t in document["rounds"])


def own_ms(document: dict[str, Any], what: str = "empty") -> list[float]:
    """What the guard does for a step, in each round: the difference of empty steps."""
    return [
        times[f"guarded {what}"] - (times[f"off {what}"] + times[f"off again {what}"]) / 2
        for times in document["rounds"]
    ]


def own_percent(document: dict[str, Any]) -> float:
    """Of a whole step."""
    return 100 * statistics.median(own_ms(document)) / median(document, "off")


def row(name: int, document: dict[str, Any]) -> str:
    """A line of the table."""
    low, middle, high = (1e3 * each for each in statistics.quantiles(own_ms(document), n=4))
    clock = 1e3 * statistics.median(own_ms(document, "clock"))
    return (
        f"| {NAMES[name]} | {median(document, 'off'):.2f} | {percent(document, 'off again'):+.1f} %"
        f" | {percent(document, 'guarded'):+.1f} % | {middle:.0f} | {low:.0f} to {high:.0f} | "
        f"{own_percent(document):.2f} % | {clock:.0f} |"
    )


def verdict(documents: Documents) -> str:
    """Which rows have what was asked for."""
    above = [NAMES[name] for name, each in documents.items() if own_percent(each) > MOST_PERCENT]
    return f"Above it: {'; '.join(above)}." if above else "Every row has that."


def page(documents: Documents, torch: str) -> str:
    """The page."""
    count = next(iter(documents.values()))["parameters"]
    return "\n".join(
        [
            "# What a guard costs while no step fails",
            "",
            made_by("benchmarks.guard.overhead --python ENV/bin/python", torch=torch),
            "",
            "GPT-2 124M of examples/gpt2, one sequence of 1,024 tokens, bfloat16 autocast, AdamW,",
            f"{count} parameters, on the bare phantom, whose own work is in every step. CPU time",
            "of the host for a step, of one process, of two ranks the first, which are in",
            f"DistributedDataParallel with the phantom's NCCL: medians of {ROUNDS} rounds, each",
            "with steps without a guard, with one, and without one again.",
            "",
            f"| {' | '.join(COLUMNS)} |",
            f"|{'---|' * len(COLUMNS)}",
            *(row(name, document) for name, document in documents.items()),
            "",
            "The guard's own work is the difference of empty steps with and without it: the same",
            "model, parameters and optimizer, whose forward, backward and update compute nothing.",
            "Its code and data are mostly not in the processor's caches then, as in a training.",
            "By the clock ranks also wait for each other:",
            "the guard votes twice in a step.",
            f"At most {MOST_PERCENT} % of a step was asked for. {verdict(documents)}",
            "",
        ]
    )


def main() -> int:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", type=Path, required=True, metavar="PATH")
    python = parser.parse_args().python.absolute()
    documents: Documents = {}
    for case in NAMES:
        documents[case] = measure(python, case)
        print(row(case, documents[case]), flush=True)
        publish("guard-overhead", page(documents, torch_version(python)))
    return int(any(own_percent(document) > MOST_PERCENT for document in documents.values()))


if __name__ == "__main__":
    sys.exit(main())
