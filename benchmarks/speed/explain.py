"""Measure `ullage explain` of a snapshot of 1.1 GB beside another commit's, and write
docs/results/speed.md.

    python -m benchmarks.speed.explain [--before 8943c43d] [--repeats 3]

The other commit is extracted and built in a temporary directory, which takes 2 GB of the disk.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.provenance import made_by
from benchmarks.results import publish
from benchmarks.speed.generate import generate_snapshot
from benchmarks.speed.measure import Command, interleave
from benchmarks.speed.snapshots import LARGE

ROOT: Final = Path(__file__).parents[2]
BEFORE: Final = "8943c43d"
# The tree comes before what is installed.
CLI: Final = "import sys; sys.path.insert(0, sys.argv.pop(1)); from ullage.cli import main; main()"


def extract(commit: str, directory: Path) -> Path:
    """The src of a commit, with its C parts built."""
    pack = subprocess.run(
        ["git", "archive", commit, "src"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", directory], input=pack, check=True)
    src = directory / "src"
    build = [sys.executable, "-m", "ullage.ground.native.build"]
    subprocess.run(build, cwd=src, env=os.environ | {"PYTHONPATH": str(src)}, check=True)
    return src


def render(seconds: Mapping[str, Sequence[float]], size_mb: float, load: float) -> str:
    """The page, of the processor seconds of each tree in each round."""
    num_repeats = len(next(iter(seconds.values())))
    table = "\n".join(
        f"| {tree} | {statistics.median(of):.2f} s | {min(of):.2f} to {max(of):.2f} s |"
        for tree, of in seconds.items()
    )
    return f"""# Speed of `ullage explain`

{made_by("benchmarks.speed.explain")}

Processor seconds for {LARGE:,} events ({size_mb:,.0f} MB), both in turn, {num_repeats} times; load
by other work before: {load:.1f}.

| commit | median | rounds |
|---|--:|--:|
{table}
"""


def main() -> None:
    """Measures both in turn, and writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", default=BEFORE, help="the other commit")
    parser.add_argument("--repeats", type=int, default=3)
    options: Any = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="ullage-explain-") as name:
        scratch = Path(name)
        snapshot = scratch / "snapshot.pickle"
        generate_snapshot(snapshot, LARGE)
        trees = {options.before: extract(options.before, scratch), "this tree": ROOT / "src"}
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
        words = {
            tree: ("-c", CLI, str(src), "explain", str(snapshot)) for tree, src in trees.items()
        }
        commands = {tree: Command((sys.executable, *of), environment) for tree, of in words.items()}
        timings = interleave(commands, scratch, options.repeats)
        size_mb = snapshot.stat().st_size / 1e6
    seconds = {tree: [each.processor_s for each in of] for tree, of in timings.items()}
    publish("speed-explain", render(seconds, size_mb, load))


if __name__ == "__main__":
    main()
