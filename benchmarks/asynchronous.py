"""Run programs with asynchronous work ten times each, and write docs/results/asynchronous-work.md.

    python -m benchmarks.asynchronous --python .envs/torch-newest/bin/python --python OTHER
    python -m benchmarks.asynchronous --python ... --repetitions 2 --case futures

When such work ends is an assumption: the page has both ends of what each program allocates and
reserves. Ends with exit code 1 where two runs of a program differ.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.provenance import made_by

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "results" / "asynchronous-work.md"
PROGRAM = ROOT / "tests" / "programs" / "distributed" / "asynchronous.py"
CASES = (
    "futures", "futures_of_lists", "futures_then", "futures_and_synchronize", "futures_and_read",
    "dropped_handles", "waits_late", "polls", "send_and_receive", "batched_messages",
    "messages_dropped", "all_to_all", "coalesced", "barrier", "functional_collectives",
    "several_groups", "side_stream", "pinned_copies", "avoids_record_streams", "data_parallel",
    "data_parallel_views", "comm_hook", "sharded_optimizer", "fully_sharded",
)  # fmt: skip
GPU = "h100-80gb"
REPETITIONS = 10
MIB = 1 << 20
ENDS = (
    "peak_allocated_low_bytes", "peak_allocated_high_bytes",
    "peak_reserved_low_bytes", "peak_reserved_high_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """All runs of a program with one torch: the ends of each run, in bytes."""

    case: str
    torch: str
    ends: tuple[tuple[int, ...], ...]

    @property
    def num_different(self) -> int:
        """How many runs differ from the first."""
        return sum(run != self.ends[0] for run in self.ends)

    def text(self) -> str:
        """A line of the table."""
        low, high, reserved_low, reserved_high = (end / MIB for end in self.ends[0][: len(ENDS)])
        name = self.case.replace("_", " ")
        alike = len(self.ends) - self.num_different
        return (
            f"| {name} | {self.torch} | {alike} of {len(self.ends)} | {low:,.0f} to {high:,.0f} | "
            f"{reserved_low:,.0f} to {reserved_high:,.0f} |"
        )


def measure(python: str, case: str, repetitions: int) -> Row:
    """Runs a program so often."""
    ends, torch = [], ""
    for _ in range(repetitions):
        document = run(python, case)
        (device, *_) = document["devices"]
        torch = document["torch"].partition("+")[0]
        ends.append((*(device[name] for name in ENDS), device["num_allocs"]))
    return Row(case, torch, tuple(ends))


def run(python: str, case: str) -> dict[str, Any]:
    """The document of one run; RuntimeError where the program failed."""
    words = [
        str(Path(sys.executable).with_name("ullage")), "run", "--gpu", GPU, "--python", python,
        "--world-size", "8", "--rank", "0", "--json", "--", str(PROGRAM), case,
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as directory:
        result = subprocess.run(words, capture_output=True, text=True, cwd=directory, check=False)
    if result.returncode:
        raise RuntimeError(f"{case} ended with {result.returncode}: {result.stderr}")
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def page(rows: Sequence[Row]) -> str:
    """The page."""
    return "\n".join(_lines(rows)) + "\n"


def _lines(rows: Sequence[Row]) -> Iterator[str]:
    torch = " and ".join(dict.fromkeys(row.torch for row in rows))
    num_alike = sum(not row.num_different for row in rows)
    yield "# Asynchronous work"
    yield ""
    yield made_by("benchmarks.asynchronous", torch=torch)
    yield ""
    yield (
        "No program states when asynchronous work ends, and PyTorch keeps the tensors of a "
        "collective that nobody waits for until it is seen to be done "
        "([how-it-works.md](../design/how-it-works.md)). The run takes the late end, and the early "
        "end is the lower bound. Each program is rank 0 of 8 and was run several times: "
        f"all runs are alike for {num_alike} of {len(rows)}."
    )
    yield ""
    yield "| program | torch | runs alike | allocated, MiB | reserved, MiB |"
    yield "|---|---|---|---|---|"
    for row in rows:
        yield row.text()


def main() -> None:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", action="append", required=True)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--case", action="append", choices=CASES)
    options = parser.parse_args()
    rows = []
    for python in options.python:
        for case in options.case or CASES:
            rows.append(measure(python, case, options.repetitions))
            print(rows[-1].text(), flush=True)
    PAGE.write_text(page(rows), encoding="utf-8")
    sys.exit(any(row.num_different for row in rows))


if __name__ == "__main__":
    main()
