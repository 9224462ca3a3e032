"""Measure what `ullage record` adds to copies, launches and batches, and write
docs/results/record.md.

    python -m benchmarks.recording.movement --python .envs/torch-newest/bin/python

The GPU is the bare phantom. Ends with exit code 1 where a cost is above what was asked for.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.provenance import made_by, torch_version
from benchmarks.recording.bare import ROOT, bare_environment
from benchmarks.results import publish

PROGRAM = Path(__file__).with_name("movement_program.py")
MOST_US = 1.0
NAMES = {
    "pinned": "copy of 64 KiB that was pinned during the recording",
    "early": "copy of 64 KiB that was pinned before: the driver is asked",
    "pageable": "copy of 64 KiB of pageable memory: the driver is asked",
    "small": "copy of 64 bytes",
    "launch": "launch of a kernel",
    "batch": "next batch of a DataLoader",
}
OF_COPIES = ("pinned", "early", "pageable", "small", "launch")
Rounds = list[dict[str, dict[str, float]]]


def measure(python: Path) -> Rounds:
    """Runs the program on the bare phantom."""
    command = [str(python), str(PROGRAM), str(ROOT / "src")]
    environment = bare_environment(python)
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    rounds: Rounds = json.loads(done.stdout.splitlines()[-1])
    return rounds


def added(rounds: Rounds, name: str, way: str = "events") -> list[float]:
    """What a way adds to an operation in each round, in microseconds."""
    return [times[way][name] - times["off"][name] for times in rounds]


def quartiles(values: list[float]) -> tuple[float, float]:
    """Between which half of the rounds lie."""
    low, _, high = statistics.quantiles(values, n=4)
    return low, high


def problems(rounds: Rounds) -> list[str]:
    """What is above what was asked for, and above the noise."""
    failures = []
    for name in OF_COPIES:
        noise = max(map(abs, quartiles(added(rounds, name, "off_again"))))
        cost = statistics.median(added(rounds, name))
        if cost > MOST_US + noise:
            failures.append(f"{NAMES[name]}: {cost:.2f} us")
    return failures


def page(rounds: Rounds, torch: str) -> str:
    """The page."""
    rows = []
    for name, words in NAMES.items():
        off = statistics.median(times["off"][name] for times in rounds)
        low, high = quartiles(added(rounds, name))
        noise = quartiles(added(rounds, name, "off_again"))
        rows.append(
            f"| {words} | {off:.2f} | {statistics.median(added(rounds, name)):+.2f} | "
            f"{low:+.2f} to {high:+.2f} | {noise[0]:+.2f} to {noise[1]:+.2f} |"
        )
    return "\n".join(
        [
            "# What `ullage record` adds to copies and batches",
            "",
            made_by("benchmarks.recording.movement --python ENV/bin/python", torch=torch),
            "",
            "The GPU is the bare phantom, whose own work is in every row, and whose answer to",
            "where memory lies takes another time than a driver's. CPU time of the host for each,",
            f"in the mode *events*: medians of {len(rounds)} rounds. At most {MOST_US:.0f} us was",
            "asked for with a copy or a launch. The noise is between two measurements without a",
            "recording.",
            "",
            "| operation | unrecorded, us | added, us | half of the rounds | noise |",
            "|---|--:|--:|---|---|",
            *rows,
            "",
            "With a batch the stream that computes is asked twice whether it has work, in Python.",
            "",
        ]
    )


def main() -> int:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", type=Path, required=True, metavar="PATH")
    python = parser.parse_args().python.absolute()
    rounds = measure(python)
    failures = problems(rounds)
    publish("record-movement", page(rounds, torch_version(python)))
    print("\n".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
