"""Run programs with asynchronous work ten times each, and write docs/results/accuracy.md.

    python -m benchmarks.asynchronous --python .envs/torch-newest/bin/python --python OTHER
    python -m benchmarks.asynchronous --python ... --repetitions 2 --case futures
    python -m benchmarks.asynchronous --python ... --runs runs.jsonl --minutes 30

When such work ends is an assumption: the page has both ends of what each program allocates and
reserves. Ends with exit code 1 where two runs of a program differ. The file of `--runs` keeps what
was measured: a later call makes the runs that are still missing.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.provenance import made_by
from benchmarks.results import publish

ROOT = Path(__file__).resolve().parent.parent
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


def measure(python: str, case: str) -> dict[str, Any]:
    """Runs a program once: {"python": ..., "case": ..., "torch": ..., "ends": [bytes, ...]}."""
    document = run(python, case)
    (device, *_) = document["devices"]
    ends = [*(device[name] for name in ENDS), device["num_allocs"]]
    torch = document["torch"].partition("+")[0]
    return {"python": python, "case": case, "torch": torch, "ends": ends}


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
        f"end is the lower bound. Each program is rank 0 of 8 and was run {_num_runs(rows)}: "
        f"all runs are alike for {num_alike} of {len(rows)} rows."
    )
    yield ""
    yield "| program | torch | runs alike | allocated, MiB | reserved, MiB |"
    yield "|---|---|---|---|---|"
    for row in rows:
        yield row.text()


def _num_runs(rows: Sequence[Row]) -> str:
    """How often the programs were run, with each torch."""
    counts: dict[str, list[int]] = {}
    for row in rows:
        counts.setdefault(row.torch, []).append(len(row.ends))
    return " and ".join(
        f"{_range(numbers)} times with torch {torch}" for torch, numbers in counts.items()
    )


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def make_rows(runs: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The rows of all runs, in the order of the programs for each torch."""
    ends: dict[tuple[str, str], list[tuple[int, ...]]] = {}
    for one_run in runs:
        ends.setdefault((one_run["torch"], one_run["case"]), []).append(tuple(one_run["ends"]))
    order = [*dict.fromkeys(one_run["torch"] for one_run in runs)]
    ordered = sorted(ends, key=lambda key: (order.index(key[0]), CASES.index(key[1])))
    return [Row(case, torch, tuple(ends[torch, case])) for torch, case in ordered]


def find_missing(
    pythons: Sequence[str],
    cases: Sequence[str],
    repetitions: int,
    runs: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[str, str]]:
    """The (interpreter, program) of each run that is still to be made, all programs once first."""
    counts = Counter((one_run["python"], one_run["case"]) for one_run in runs)
    for python in pythons:
        for number in range(repetitions):
            yield from ((python, case) for case in cases if counts[python, case] <= number)


def main() -> None:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", action="append", required=True)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--runs", type=Path, help="a file that keeps the runs")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no run after these")
    options = parser.parse_args()
    text = options.runs.read_text() if options.runs and options.runs.exists() else ""
    runs = [json.loads(line) for line in text.splitlines()]
    ends_s = time.monotonic() + 60 * options.minutes
    for python, case in [
        *find_missing(options.python, options.case or CASES, options.repetitions, runs)
    ]:
        if time.monotonic() > ends_s:
            break
        runs.append(measure(python, case))
        print(json.dumps(runs[-1]), flush=True)
        if options.runs:
            with options.runs.open("a") as file:
                file.write(json.dumps(runs[-1]) + "\n")
    rows = make_rows(runs)
    publish("asynchronous-work", page(rows))
    sys.exit(any(row.num_different for row in rows))


if __name__ == "__main__":
    main()
