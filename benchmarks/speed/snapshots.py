"""Measure time and memory of reading snapshots, and write docs/results/speed.md.

    python -m benchmarks.speed.snapshots --python env/bin/python [--repeats 3]

`env/bin/python` is the interpreter of an environment with torch, whose own viewer's command line is
measured beside. The snapshots are made by `benchmarks.speed.generate`.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.provenance import made_by
from benchmarks.results import publish
from benchmarks.speed.generate import generate_snapshot

MIB = 2**20
SMALL, LARGE = 1_000_000, 4_600_000
# What is done before the clock runs, and under it; `path` and `other` are files.
READ = ("from ullage.log.snapshot_reader import read_snapshot", "read_snapshot(path)")
REPLAY = (
    f"{READ[0]}; from ullage.log.replay import replay; snapshot = read_snapshot(path)",
    "replay(snapshot)",
)
WRITE = (
    (
        f"{READ[0]}; from ullage.log.compact_format.compact import write_compact; "
        "snapshot = read_snapshot(path)"
    ),
    "write_compact(snapshot, other)",
)
SCRUB = (
    "from ullage.log.scrubbing.scrub import scrub_snapshot",
    "scrub_snapshot(path, other.open('wb'), key=b'')",
)
UNPICKLE = ("import pickle", "pickle.load(path.open('rb'))")
CLI = "from ullage.cli import main; main()"
CHILD = """import json, sys, time
from pathlib import Path
path, other = map(Path, sys.argv[1:3])
{before}
started = time.perf_counter()
{timed}
print(json.dumps(time.perf_counter() - started))
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a process took: seconds of what was timed, and the peak of its resident memory."""

    seconds: float
    peak_bytes: int


def run_process(words: Sequence[str]) -> tuple[Cost, str]:
    """Runs a process to its end; its seconds are those of the whole process.

    Raises: SystemExit: it failed.
    """
    started = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode(errors="replace")
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} exited with {process.returncode}:\n{text[-2000:]}")
    return Cost(seconds, usage.ru_maxrss * 1024), text


def run_timed(what: tuple[str, str], path: Path, other: Path) -> Cost:
    """Runs a piece of Python in a process of its own; its seconds are those under the clock."""
    before, timed = what
    code = CHILD.format(before=before, timed=timed)
    cost, text = run_process([sys.executable, "-c", code, str(path), str(other)])
    return Cost(float(json.loads(text.splitlines()[-1])), cost.peak_bytes)


class Bench:
    """The files, and how often each is measured."""

    def __init__(self, directory: Path, num_repeats: int) -> None:
        self.other = directory / "other"
        self.num_repeats = num_repeats
        self.files: dict[int, Path] = {}
        self.compact: dict[int, Path] = {}
        for num_events in (SMALL, LARGE):
            self.files[num_events] = path = directory / f"{num_events}.pickle"
            generate_snapshot(path, num_events)
            self.compact[num_events] = compact = directory / f"{num_events}.ullage"
            run_timed(WRITE, path, compact)

    def measure(self, what: tuple[str, str], path: Path) -> Cost:
        """The median of the seconds, the highest of the peaks."""
        costs = [run_timed(what, path, self.other) for _ in range(self.num_repeats)]
        seconds = statistics.median(cost.seconds for cost in costs)
        return Cost(seconds, max(cost.peak_bytes for cost in costs))

    def rows(self, num_events: int) -> list[str]:
        """The lines of the table for one file."""
        path, compact = self.files[num_events], self.compact[num_events]
        size, small_size = path.stat().st_size, compact.stat().st_size
        is_large = num_events == LARGE
        kinds: list[tuple[str, tuple[str, str], Path, str]] = [
            ("`read_snapshot`", READ, path, "20 s, 1.5 x" if is_large else ""),
            ("the same from `.ullage`", READ, compact, "1 s" if is_large else ""),
            ("writing `.ullage`", WRITE, path, ""),
            ("`replay`", REPLAY, path, ""),
            ("`scrub_snapshot`", SCRUB, path, ""),
            ("`pickle.load`", UNPICKLE, path, ""),
        ]
        sizes = f"{size / 1e6:,.0f} MB; its `.ullage`: {small_size / 1e6:.1f} MB"
        rows = [f"| **{num_events:,} events, {sizes}** | | | |"]
        for name, what, file, target in kinds:
            cost = self.measure(what, file)
            rows.append(line(name, cost, size, target))
        return rows

    def verbs(self, num_events: int, python: Path) -> list[str]:
        """The lines for what a user calls, as whole processes."""
        path, compact = self.files[num_events], self.compact[num_events]
        second = self.other.with_suffix(".ullage")
        shutil.copyfile(compact, second)
        kinds: list[tuple[str, list[str], str]] = [
            ("`ullage explain`", ["explain", str(path)], "5 s"),
            ("the same from `.ullage`", ["explain", str(compact)], ""),
            ("`ullage diff` of two `.ullage`", ["diff", str(compact), str(second)], "5 s"),
            ("`ullage what-if`, torch included",
             ["what-if", str(compact), "--python", str(python)], ""),
        ]  # fmt: skip
        rows = [f"| **verbs, {num_events:,} events**, from start to end | | | |"]
        for name, words, target in kinds:
            command = [sys.executable, "-c", CLI, *words]
            costs = [run_process(command)[0] for _ in range(self.num_repeats)]
            seconds = statistics.median(cost.seconds for cost in costs)
            cost = Cost(seconds, max(cost.peak_bytes for cost in costs))
            rows.append(line(name, cost, path.stat().st_size, target))
        return rows


def line(name: str, cost: Cost, size: int, target: str) -> str:
    """A line of the table; size: of the pickle."""
    peak = f"{cost.peak_bytes / MIB:,.0f} MiB, {cost.peak_bytes / size:.2f} x"
    return f"| {name} | {cost.seconds:.2f} s | {peak} | {target} |"


def measure_viewer(bench: Bench, python: Path) -> list[str]:
    """torch's own `_memory_viz.py` on the smaller file, as a user calls it."""
    where = "import torch, os; print(os.path.dirname(torch.__file__), torch.__version__)"
    folder, version = run_process([str(python), "-c", where])[1].split()[-2:]
    script, path = f"{folder}/cuda/_memory_viz.py", bench.files[SMALL]
    rows = [f"| **torch {version}, `_memory_viz.py`**, the file of {SMALL:,} events | | | |"]
    for arguments in (["stats", str(path)], ["trace_plot", str(path), "-o", str(bench.other)]):
        cost, _ = run_process([str(python), script, *arguments])
        name = f"`{arguments[0]}`"
        if arguments[0] == "trace_plot":
            name += f" (a page of {bench.other.stat().st_size / 1e6:,.0f} MB)"
        rows.append(line(name, cost, path.stat().st_size, ""))
    return rows


def render(rows: Sequence[str], num_repeats: int, load: float) -> str:
    """The page; load: how many other processes wanted a core."""
    table = "\n".join(rows)
    return f"""# Speed of reading snapshots

{made_by("benchmarks.speed.snapshots")}

 Each line is a separate
process. The time is that of the call, the median of {num_repeats}; for torch's script, that of the
process. The memory is the peak of the process's resident memory,
in MiB and relative to the size of the pickle. The files are in the page cache. *at most* is the
goal that was set beforehand.

Load by other work before the first measurement: {load:.1f} processes.

| what | time | memory | at most |
|---|---|---|---|
{table}

 The files have the allocations of a training loop with 2,000
different stacks of 40 frames (`benchmarks/speed/generate.py`), in the layout of torch's pickles.
"""


def main() -> None:
    """Measure everything and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", type=Path, required=True, help="the interpreter with torch")
    parser.add_argument("--repeats", type=int, default=3)
    args: Any = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ullage-speed-") as directory:
        load = os.getloadavg()[0]
        bench = Bench(Path(directory), args.repeats)
        rows = [
            *bench.rows(LARGE),
            *bench.rows(SMALL),
            *bench.verbs(SMALL, args.python),
            *measure_viewer(bench, args.python),
        ]
    publish("speed-snapshots", render(rows, args.repeats, load))


if __name__ == "__main__":
    main()
