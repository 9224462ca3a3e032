"""Measure what a guard costs while no step fails, and write docs/results/guard-overhead.md.

    python -m benchmarks.guard.overhead --python .envs/torch-newest/bin/python

The GPU is the bare phantom. Ends with exit code 1 where the cost is above what was asked for.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.provenance import made_by, torch_version
from benchmarks.recording.bare import ROOT, bare_environment

PAGE = ROOT / "docs" / "results" / "guard-overhead.md"
PROGRAM = Path(__file__).with_name("overhead_program.py")
ROUNDS = 200
MOST_PERCENT = 0.5


def measure(python: Path) -> dict[str, Any]:
    """Runs the program on the bare phantom."""
    done = subprocess.run(
        [str(python), str(PROGRAM), str(ROOT / "src"), str(ROUNDS)],
        env=bare_environment(python), check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
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


def page(document: dict[str, Any], torch: str) -> str:
    """The page."""
    rows = [
        f"| {what} | {median(document, name):.2f} | {percents(document, name)[1]:+.1f} % | "
        f"{percents(document, name)[0]:+.1f} % to {percents(document, name)[2]:+.1f} % |"
        for what, name in (("without a guard, once more", "off_again"), ("guarded", "guarded"))
    ]
    own = own_percent(document)
    verdict = "at most that" if own <= MOST_PERCENT else "more than that"
    return "\n".join(
        [
            "# What a guard costs while no step fails",
            "",
            made_by("benchmarks.guard.overhead --python ENV/bin/python", torch=torch),
            "",
            "GPT-2 124M of examples/gpt2, one sequence of 1,024 tokens, bfloat16 autocast, AdamW,",
            f"{document['parameters']} parameters, on the bare phantom, whose own work is in every",
            "row. CPU time of the host for a step, in one process: medians of",
            f"{ROUNDS} rounds, each with every way once, in an order of its own. A step without a",
            f"guard takes {median(document, 'off'):.2f} ms.",
            "",
            "| way | ms | above the step without | half of the rounds |",
            "|---|---|---|---|",
            *rows,
            "",
            "The first row is the noise. What the guard itself does for a step (notes version",
            "counters, gradients, generators and attributes, copies buffers) takes",
            f"{1e3 * median(document, 'own'):.0f} us beside it: {own:.2f} % of the step. At most",
            f"{MOST_PERCENT} % was asked for; it is {verdict}.",
            "",
        ]
    )


def main() -> int:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", type=Path, required=True, metavar="PATH")
    python = parser.parse_args().python.absolute()
    document = measure(python)
    PAGE.write_text(page(document, torch_version(python)), encoding="utf-8")
    print(f"Wrote {PAGE.relative_to(ROOT)}: {own_percent(document):.2f} %")
    return int(own_percent(document) > MOST_PERCENT)


if __name__ == "__main__":
    sys.exit(main())
