"""A net for truth: everything of real GPUs that there is, today beside the last commit's table.

    python -m benchmarks.truth                      # compare: exits 1 where it became worse
    python -m benchmarks.truth --write              # write docs/results/truth.md and truth.csv
    python -m benchmarks.truth --tier night         # what is costly, too
    python -m benchmarks.truth --only workloads     # one source, compared alone

What is costly runs with `--tier night`: workloads that need libraries, examples, and the clock of
kernels. Public programs need their folder (`--programs DIR`, see benchmarks.time.published), and
run by their own benchmarks, which keep results of their own; so do starts of vLLM
(benchmarks.serving). A case that does not run in this call keeps its last result, with its day. It
is worse where a wrong "fits" or a false alarm appeared, or a case was lost.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.provenance import made_by
from benchmarks.results import RESULTS, publish
from benchmarks.truth import drawn, memory, served
from benchmarks.truth.case import (
    Case,
    as_recorded,
    compare,
    read_table,
    with_recorded,
    write_table,
)
from benchmarks.truth.options import ROOT, Options, by_version, default_pythons
from benchmarks.truth.page import render, total

TABLE: Final = RESULTS / "truth.csv"
Source = Callable[[Options], Iterator[Case]]
SOURCES: Final[tuple[Source, ...]] = (
    memory.recordings, memory.snapshots, memory.workloads, memory.examples, memory.logs,
    memory.readings, memory.estimates, served.estimated_starts, served.simulated_starts,
    served.recorded_server, served.closed_loops, served.steps, served.kernel_times,
    drawn.drawn_programs,
)  # fmt: skip


def run_programs(programs: Path, python: Path) -> None:
    """Runs the public programs by their own benchmarks, which keep what they give."""
    for module, options in (
        ("benchmarks.accuracy.logs", ("--checkout", str(programs / "parameter-golf"), "--again")),
        ("benchmarks.time.published", ("--programs", str(programs), "--python", str(python))),
    ):
        subprocess.run([sys.executable, "-m", module, *options], cwd=ROOT, check=True)


def committed() -> str:
    """The last commit's table; where there is none, the file's."""
    name = TABLE.relative_to(ROOT).as_posix()
    done = subprocess.run(
        ["git", "-C", str(ROOT), "show", f"HEAD:{name}"], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    return done.stdout if done.returncode == 0 else kept()


def kept() -> str:
    """The file as it is; empty where there is none."""
    return TABLE.read_text(encoding="utf-8") if TABLE.exists() else ""


def find_cases(sources: Sequence[Source], options: Options) -> Iterator[Case]:
    """The cases of some sources, a line for each source as it is done."""
    for source in sources:
        found = list(source(options))
        print(f"{source.__name__}: {total(found)}".replace("**", ""), file=sys.stderr, flush=True)
        yield from found


def main() -> None:
    """Run, compare, and write if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = {source.__name__: source for source in SOURCES}
    parser.add_argument("--tier", choices=("all", "night"), default="all")
    parser.add_argument("--write", action="store_true", help="write the page and the table")
    parser.add_argument("--only", choices=names, nargs="+", help="these sources; others are kept")
    parser.add_argument("--python", type=Path, action="append", help="interpreters with torch")
    parser.add_argument("--programs", type=Path, help="folder of the public programs")
    parser.add_argument("--programs-python", type=Path, help="interpreter of their environment")
    args = parser.parse_args()
    if args.programs:
        run_programs(args.programs.resolve(), (args.programs_python or Path(sys.executable)))
    pythons = by_version([path.absolute() for path in args.python or default_pythons()])
    sources = [names[name] for name in args.only or names]
    earlier = read_table(kept())
    with tempfile.TemporaryDirectory(prefix="ullage-truth-") as work:
        options = Options(args.tier == "night", pythons, Path(work), bool(args.programs))
        cases = with_recorded(list(find_cases(sources, options)), earlier)
    if args.only:
        others = {key: as_recorded(case) for key, case in earlier.items()}
        cases = list((others | {case.key: case for case in cases}).values())
    before = read_table(committed())
    difference = compare(cases, before)
    print("\n".join((*difference.lines(), total(cases).strip("*"))))
    if args.write:
        torch = ", ".join(sorted(pythons)) or None
        module = f"benchmarks.truth --tier {args.tier} --write"
        publish("truth-sum", render(cases, before, difference, made_by(module, torch=torch)))
        TABLE.write_text(write_table(cases, before), "utf-8")
        print(f"Wrote {TABLE.relative_to(ROOT)}")
    elif difference.is_worse:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
