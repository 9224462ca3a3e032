"""Tries mutants of src on the tests, and writes docs/results/tests.md.

    python -m benchmarks.net --lines all      # the lines that tests execute, of which it draws
    python -m benchmarks.net --count 20       # goes on where it was stopped
    python -m benchmarks.net --last test      # what passes `make test` waits for a call without it
    python -m benchmarks.net --only "edit 3"  # tries one again, and writes nothing
    python -m benchmarks.net --page           # writes the page from the table

docs/results/net.csv has a line for each mutant; its last field, what was added for one that `make
test` did not catch, is written by hand. Works on the last commit, in a clone in build/net.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, count, islice, zip_longest
from pathlib import Path

from benchmarks.net.choice import (
    Mutant,
    draw_edit,
    draw_mends,
    find_packages,
    read_mutants,
    write_mutants,
)
from benchmarks.net.lines import (
    MIN_CODE_LINES,
    ModuleLines,
    count_lines,
    measure_lines,
    read_sources,
)
from benchmarks.net.page import render
from benchmarks.net.trial import TIERS, Clone, make_clone, try_mutant
from benchmarks.results import RESULTS, publish

ROOT = Path(__file__).resolve().parents[2]
TABLE, LINES = RESULTS / "net.csv", RESULTS / "net-lines.csv"
SCRATCH = ROOT / "build" / "net"


def write_lines(clone: Clone, tier: str) -> None:
    """Keeps the lines that a tier executes; of `make test`, also the counts of each module."""
    executed = measure_lines(clone, tier)
    _lines_of(clone, tier).write_text(json.dumps(executed), encoding="utf-8")
    rows = count_lines(clone.root / "src" / "ullage", executed)
    if tier == "test":
        with LINES.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([ModuleLines._fields, *rows])
        print(f"Wrote {LINES}")
    idle = [row.module for row in rows if not row.num_executed]
    if idle:
        raise SystemExit(
            f"tier {tier!r} executes no line within a function of {len(idle)} modules of more than "
            f"{MIN_CODE_LINES} lines of code; add a test that calls them: {', '.join(idle)}"
        )


def fill(mutants: Sequence[Mutant], num_mutants: int, clone: Clone) -> list[Mutant]:
    """The mutants, and more until they are as many as asked for: an edit, a mend, and so on."""
    edits = [mutant for mutant in mutants if not mutant.is_mend]
    mends = [mutant for mutant in mutants if mutant.is_mend]
    if len(edits) < num_mutants // 2:
        packages = find_packages(read_sources(clone.root / "src" / "ullage"), _executed(clone))
        numbers = count(1 + max((int(edit.name.split()[1]) for edit in edits), default=0))
        while len(edits) < num_mutants // 2:
            edit = draw_edit(packages, next(numbers))
            if all((edit.file, edit.after) != (other.file, other.after) for other in edits):
                edits.append(edit)
    names = {mend.name for mend in mends}
    left = (mend for mend in draw_mends() if mend.name not in names and clone.has_mend(mend.commit))
    mends += islice(left, max(0, num_mutants // 2 - len(mends)))
    return [one for one in chain(*zip_longest(edits, mends)) if one is not None]


def _lines_of(clone: Clone, tier: str) -> Path:
    """Where the lines are that a tier executes of this src: in another, lines have moved."""
    return SCRATCH / f"lines-{clone.tree.partition('-')[0]}-{tier}.json"


def _executed(clone: Clone) -> dict[str, set[int]]:
    """The lines that some test executes: of all tiers that were asked for."""
    executed: defaultdict[str, set[int]] = defaultdict(set)
    for path in filter(Path.exists, (_lines_of(clone, tier) for tier in TIERS)):
        for file, lines in json.loads(path.read_text(encoding="utf-8")).items():
            executed[file].update(lines)
    if not executed:
        raise SystemExit(
            "found no lines that tests execute in this src, of which mutants are drawn; first run "
            "python -m benchmarks.net --lines all"
        )
    return executed


def try_first(num_mutants: int, mutants: list[Mutant], clone: Clone, last: str) -> None:
    """Tries the first that were not tried yet; the table and the page have each at once."""
    for place, mutant in enumerate(mutants[:num_mutants]):
        if not mutant.tier or (mutant.tier == "later" and last == TIERS[-1]):
            mutants[place] = try_mutant(clone, mutant, last)
            print(describe(mutants[place]), flush=True)
            write_mutants(TABLE, mutants)
            publish("net-sum", render(mutants))


def describe(mutant: Mutant) -> str:
    """What caught it, in a line."""
    return f"{mutant.name}: {mutant.tier}, {mutant.seconds} s, {mutant.case or 'no test failed'}"


def main() -> None:
    """Does what the options say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=20, help="how many mutants; half are edits")
    parser.add_argument("--lines", choices=TIERS, help="finds the lines that a tier executes")
    parser.add_argument("--last", choices=TIERS, default=TIERS[-1], help="the last tier to try")
    parser.add_argument("--only", metavar="NAME", help="a mutant of the table; nothing is written")
    parser.add_argument("--page", action="store_true", help="writes the page and tries nothing")
    args = parser.parse_args()
    mutants = read_mutants(TABLE)
    if args.page:
        publish("net-sum", render(mutants))
        return
    SCRATCH.mkdir(parents=True, exist_ok=True)
    clone = make_clone(ROOT, SCRATCH)
    if args.lines:
        write_lines(clone, args.lines)
    elif args.only:
        known = {mutant.name: mutant for mutant in mutants}
        if args.only not in known:
            parser.error(f"no mutant {args.only!r} in {TABLE}; it has {', '.join(known)}")
        print(describe(try_mutant(clone, known[args.only])))
    else:
        mutants = fill(mutants, args.count, clone)
        write_mutants(TABLE, mutants)
        try_first(args.count, mutants, clone, args.last)


if __name__ == "__main__":
    main()
