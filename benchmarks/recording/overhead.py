"""Measure what `ullage record` costs, and write docs/results/record.md.

    python -m benchmarks.recording.overhead --python .envs/torch-newest/bin/python

The GPU is the bare phantom. Ends with exit code 1 where a cost is above what was asked for.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.provenance import made_by, torch_version
from benchmarks.recording.bare import ROOT, bare_environment
from benchmarks.results import publish

PROGRAM = Path(__file__).with_name("overhead_program.py")
PARTS = (("costs",), ("off",), ("events",), ("full",))
PROGRAMS, DAY_MODES = ("training", "forwards"), ("events", "full")
DAYS = tuple((program, mode) for program in PROGRAMS for mode in ("off", *DAY_MODES))
NUM_MANY_EVENTS = 10_000_000
MIB = 1 << 20
# Asked for: microseconds for an allocation, seconds for a file, bytes.
MOST_US = {"counters": 0.0, "events": 1.0, "full": 3.0}
MOST_WRITING_S, MOST_FILE_BYTES, RING_BYTES = 2.0, 64 * MIB, 64 * MIB
RING_OF_A_DAY_BYTES, MOST_FILE_CHANGE, MOST_DAY_GROWTH_BYTES = 4 * MIB, 0.1, 2 * MIB
NAMES = {
    "off_again": "unrecorded once more",
    "torch_without_stacks": "torch's own history, without stacks",
    "torch_with_stacks": "torch's own history, Python stacks",
    "counters": "`--mode counters`",
    "events": "`--mode events`",
    "full": "`--mode full` (ours and torch's stacks)",
}


def measure(python: Path) -> dict[str, Any]:
    """Runs the program on the bare phantom."""
    environment = bare_environment(python)
    parts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        for part in (*PARTS, *DAYS):
            command = [str(python), str(PROGRAM), str(ROOT / "src"), directory, *part]
            done = subprocess.run(
                command, env=environment, check=True, stdout=subprocess.PIPE, text=True
            )
            parts["-".join(part)] = json.loads(done.stdout.splitlines()[-1])
    for mode in ("events", "full"):
        parts[mode]["grown_bytes"] -= parts["off"]["grown_bytes"]
    return parts | parts["costs"]


def differences(document: dict[str, Any], name: str, base: str = "off") -> list[float]:
    """What a way adds to an allocation with its free in each round, in microseconds, ascending."""
    return sorted(times[name] - times[base] for times in document["rounds"])


def costs(document: dict[str, Any]) -> dict[str, float]:
    """The medians."""
    return {name: statistics.median(differences(document, name)) for name in NAMES}


def quartiles(values: list[float]) -> str:
    """Between which half of the rounds lie."""
    low, _, high = statistics.quantiles(values, n=4)
    return f"{low:+.2f} to {high:+.2f}"


def noise_us(document: dict[str, Any]) -> float:
    """By how much half of the rounds of the same process, unrecorded, differ from one another."""
    low, _, high = statistics.quantiles(differences(document, "off_again"), n=4)
    return max(abs(low), abs(high))


def own_costs(document: dict[str, Any]) -> dict[str, float]:
    """The same without torch's own stacks, which `full` turns on."""
    added = costs(document)
    stacks = differences(document, "full", "torch_with_stacks")
    return {
        "counters": added["counters"],
        "events": added["events"],
        "full": statistics.median(stacks),
    }


def problems(document: dict[str, Any]) -> list[str]:
    """What is above what was asked for."""
    own = own_costs(document)
    noise = noise_us(document)
    failures = [
        f"{name}: {own[name]:.2f} us" for name, most in MOST_US.items() if own[name] > most + noise
    ]
    if document["writing"]["cpu_s"] > MOST_WRITING_S:
        failures.append(f"writing: {document['writing']['cpu_s']:.2f} s")
    for mode in ("events", "full"):
        if document[mode]["file_bytes"] > MOST_FILE_BYTES:
            failures.append(f"{mode}: a file of {document[mode]['file_bytes'] / MIB:.1f} MiB")
        if document[mode]["grown_bytes"] > 2 * RING_BYTES:
            failures.append(f"{mode}: {document[mode]['grown_bytes'] / MIB:.1f} MiB of memory")
    for program in PROGRAMS:
        for mode in DAY_MODES:
            failures += Day.of(document, program, mode).problems(f"{program} in the mode {mode}")
    return failures


@dataclass(frozen=True, slots=True)
class Day:
    """A day in miniature: its second half, when the ring has been full for long.

    Attributes:
        num_lost: the events that left the ring.
        file_bytes: of the file after each hour.
        grown_bytes: of host memory, beyond that of the same program unrecorded.
    """

    num_lost: int
    file_bytes: tuple[int, ...]
    grown_bytes: int

    @classmethod
    def of(cls, document: dict[str, Any], program: str, mode: str) -> Day:
        """From what was measured.

        Raises:
            SystemExit: the ring was not full by the middle of the day.
        """
        hours = document[f"{program}-{mode}"]["hours"]
        first = len(hours) // 2 - 1
        if not hours[first]["num_lost"]:
            raise SystemExit(f"{program} in the mode {mode}: the ring is not full by noon")
        grown = [
            rows[-1]["resident_bytes"] - rows[first]["resident_bytes"]
            for rows in (hours, document[f"{program}-off"]["hours"])
        ]
        files = tuple(hour["file_bytes"] for hour in hours[first:])
        return cls(hours[-1]["num_lost"], files, grown[0] - grown[1])

    def problems(self, name: str) -> list[str]:
        """What is not flat, or too large."""
        failures = []
        low, high = min(self.file_bytes), max(self.file_bytes)
        if high > RING_OF_A_DAY_BYTES or high - low > MOST_FILE_CHANGE * high:
            failures.append(f"{name}: a file of {low / MIB:.2f} to {high / MIB:.2f} MiB")
        if self.grown_bytes > MOST_DAY_GROWTH_BYTES:
            failures.append(f"{name}: memory grew by {self.grown_bytes / MIB:.1f} MiB in a day")
        return failures

    def row(self, program: str, mode: str) -> str:
        """A line of the table."""
        low, high = min(self.file_bytes) / MIB, max(self.file_bytes) / MIB
        grown = f"{self.grown_bytes / MIB:+.1f}"
        return f"| {program} | {mode} | {self.num_lost:,} | {low:.2f} to {high:.2f} | {grown} |"


def page_of_days(document: dict[str, Any]) -> list[str]:
    """The lines about days in miniature."""
    rows = [
        Day.of(document, program, mode).row(program, mode)
        for program in PROGRAMS
        for mode in DAY_MODES
    ]
    return [
        "## A day in miniature",
        "",
        "Real steps in 24 parts, with a ring of 4 MiB that overflows again and again: a *training*",
        "of 12 layers with AdamW (60 steps a part), and *forwards* without gradients, as a",
        "server's (2,500 a part). The file is written after each part. Both figures are of the",
        "second half: the smallest and the largest file, and by how much host memory grew from",
        "the 12th part to the last, beyond the same program unrecorded. Before that the rows",
        "beside the events grow to their limits.",
        "",
        "| program | mode | events that left the ring | file, MiB | memory grew by, MiB |",
        "|---|---|--:|---|---|",
        *rows,
        "",
    ]


def page(document: dict[str, Any], torch: str) -> str:
    """The page."""
    added, own = costs(document), own_costs(document)
    writing = document["writing"]
    off = statistics.median(times["off"] for times in document["rounds"])
    rows = [
        f"| {name} | {added[key]:+.2f} | {quartiles(differences(document, key))} | "
        f"{f'{own[key]:+.2f}' if key in own else ''} | "
        f"{MOST_US.get(key, '')} |"
        for key, name in NAMES.items()
    ]
    fills = [
        f"| {mode} | {filled['grown_bytes'] / MIB:.1f} | {filled['file_bytes'] / MIB:.1f} |"
        for mode, filled in ((mode, document[mode]) for mode in ("events", "full"))
    ]
    return "\n".join(
        [
            "# What `ullage record` costs",
            "",
            made_by("benchmarks.recording.overhead --python ENV/bin/python", torch=torch),
            "",
            "The GPU is the bare phantom, whose own work is in every row. CPU time of the host for",
            f"an allocation and its free, in a module, 20 calls deep, beside {off:.2f} us without",
            "recording: medians of 15 rounds with every way once, in an order of their own.",
            "The second column is where half of the rounds lie; its first row is the noise. *ours*",
            "leaves out torch's own stacks, which the mode *full* turns on.",
            "",
            "| way | added, us | half of the rounds | ours, us | asked for at most |",
            "|---|---|---|---|---|",
            *rows,
            "",
            "In all modes but *counters* each call of a module, a backward and an optimizer's step",
            "cost some microseconds besides.",
            "",
            f"When memory runs out after {100_000:,} events in the mode *full*, the file of",
            f"{writing['file_bytes'] / MIB:.1f} MiB is written in {writing['cpu_s']:.2f} s of CPU",
            f"time ({writing['wall_s']:.2f} s by the clock, at a load of {writing['load']:.1f}",
            f"on {os.cpu_count()} cores). At most {MOST_WRITING_S:.0f} s were asked for.",
            "",
            "## A long run",
            "",
            "Host memory, beyond that of the same process unrecorded, and the file, with a ring of",
            f"64 MiB after {NUM_MANY_EVENTS:,} events and 864,000 steps: those of 24 hours at ten",
            "a second. The day itself is simulated: steps are noted without a day of waiting",
            f"({document['events']['step_us']:.2f} us each).",
            "",
            "| mode | memory grew by, MiB | file, MiB |",
            "|---|---|---|",
            *fills,
            "",
            *page_of_days(document),
        ]
    )


def main() -> int:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", type=Path, required=True, metavar="PATH")
    options = parser.parse_args()
    python = options.python.absolute()
    document = measure(python)
    failures = problems(document)
    publish("record-overhead", page(document, torch_version(python)))
    print("\n".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
