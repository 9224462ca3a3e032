"""What the tests cost: `make test` in a fresh clone, its seconds on the wall and of processors.

    python -m benchmarks.suite                         # three runs, in docs/results/suite.csv
    python -m benchmarks.suite --runs 1 --target test-all
    python -m benchmarks.suite --commit 8943c43d       # an older state beside it

The clone is of the committed state. Its set-up (make .venv and the environment with PyTorch) is
timed apart, as the row `set-up`. The wall time of a busy machine says little: a row has the load
of the minute before.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import astuple, dataclass, fields
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "docs" / "results" / "suite.csv"
# What the last call of make said: the names of cases that failed, which the row only counts.
LOG = ROOT / "build" / "suite.log"
SET_UP = (".venv/done", ".envs/torch-newest/ullage-env.json")


@dataclass(frozen=True, slots=True)
class Row:
    """One call of make: what was made of which commit, how long it took, what pytest counted."""

    commit: str
    date: str
    target: str
    wall_s: float
    processor_s: float
    load: float
    result: str


def timed(target: str, directory: Path, commit: str, *words: str) -> Row:
    """Runs make in a clone."""
    before, begun, load = _processor_s(), time.monotonic(), os.getloadavg()[0]
    done = subprocess.run(
        ["make", "--no-print-directory", *(words or (target,))],
        cwd=directory, capture_output=True, text=True, check=False,
    )  # fmt: skip
    LOG.parent.mkdir(exist_ok=True)
    LOG.write_text(done.stdout + done.stderr, encoding="utf-8")
    counts = re.findall(r"=+ (.*(?:passed|failed).*) in [\d.]+s", done.stdout)
    result = "; ".join(counts) or ("done" if done.returncode == 0 else done.stderr[-200:])
    wall_s, processor_s = time.monotonic() - begun, _processor_s() - before
    return Row(commit, f"{date.today()}", target, wall_s, processor_s, load, result)


def _processor_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def read_rows() -> list[Row]:
    """The rows of earlier calls."""
    if not DATA.exists():
        return []
    with DATA.open(encoding="utf-8", newline="") as file:
        return [
            Row(a, b, c, float(wall), float(processor), float(load), result)
            for a, b, c, wall, processor, load, result in list(csv.reader(file))[1:]
        ]


def main() -> int:
    """Clones, sets up, runs, writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--target", default="test")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    rev = ["git", "rev-parse", "--short=8", options.commit]
    commit = subprocess.run(
        rev, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    rows = read_rows()
    with tempfile.TemporaryDirectory(prefix="suite-") as scratch:
        clone = Path(scratch) / "a clone" / "ullage"  # a space and this name are to be no trouble
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        subprocess.run(["git", "checkout", "--quiet", commit], cwd=clone, check=True)
        rows.append(timed("set-up", clone, commit, *SET_UP))
        for _ in range(options.runs):
            rows.append(timed(options.target, clone, commit))
            print(rows[-1], flush=True)
    with DATA.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(Row)])
        for row in rows:
            cells = (f"{cell:.1f}" if isinstance(cell, float) else cell for cell in astuple(row))
            writer.writerow(cells)
    return 0


if __name__ == "__main__":
    sys.exit(main())
