"""Which mutants there are: half are edits of src that a seed draws, half mends that are taken back.

An edit is drawn in two steps. The packages of src lie on a line, each as long as its modules, and
the n-th edit takes the package at the n-th multiple of the golden ratio: so the first n, whatever n
is, are spread by size. Within the package an operator is drawn, then one of its edits, of lines
that some test executes. Once drawn, a mutant is a row of docs/results/net.csv.
"""

from __future__ import annotations

import csv
import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

from benchmarks.net.operators import Edit, edits_of

SEED: Final = 31
# Of these the rows are the program: the tests of each row are what holds them.
_LEFT_OUT: Final = {"tables", "data"}
_GOLDEN: Final = (5**0.5 - 1) / 2
_MENDS: Final = Path(__file__).with_name("mends.csv")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A row of the table: a fault, and the tests that caught it.

    Attributes:
        name: "edit 3", or "mend" and the commit that is taken back.
        file: of an edit, from the root; "": a mend.
        line: of an edit, when it was drawn; 0: a mend.
        before: of an edit, the line without indentation; of a mend, the fault that it mended.
        after: of an edit, what takes the line's place.
        tier: the tier whose tests caught it, "none", "" before it was tried, or "later": it passed
            `make test`, and waits for `make test-all`.
        case: the first test that failed.
        seconds: from the start of that tier to the failure.
        tree: what src and tests it was tried on.
        added: of one that `make test` did not catch, what was added for it; written by hand.
    """

    name: str
    file: str
    line: int
    before: str
    after: str
    tier: str = ""
    case: str = ""
    seconds: int = 0
    tree: str = ""
    added: str = ""

    @property
    def commit(self) -> str:
        """Of a mend."""
        return self.name.removeprefix("mend ")

    @property
    def is_mend(self) -> bool:
        """Whether a commit is taken back."""
        return self.name.startswith("mend ")


def read_mutants(path: Path) -> list[Mutant]:
    """The rows of a table, in their order; none where there is no table yet."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    numbers = ("line", "seconds")
    return [Mutant(**row | {name: int(row[name]) for name in numbers}) for row in rows]


def write_mutants(path: Path, mutants: Sequence[Mutant]) -> None:
    """Writes the table."""
    with path.open("w", encoding="utf-8", newline="") as file:
        names = [field.name for field in fields(Mutant)]
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(mutant) for mutant in mutants)


@dataclass(frozen=True, slots=True)
class Package:
    """A package of src: its lines, and the edits of those that some test executes, by operator."""

    num_lines: int
    edits: Mapping[str, Sequence[tuple[str, Edit]]]


def find_packages(
    sources: Mapping[str, str], executed: Mapping[str, Collection[int]]
) -> dict[str, Package]:
    """The packages that have edits, and the modules beside them, by name.

    Args:
        sources: the text of each module, by its path within src/ullage.
        executed: the lines of each module that some test executes.
    """
    sizes: defaultdict[str, int] = defaultdict(int)
    edits: defaultdict[str, defaultdict[str, list[tuple[str, Edit]]]]
    edits = defaultdict(lambda: defaultdict(list))
    for file, text in sorted(sources.items()):
        package, *inner = file.split("/")
        sizes[package] += len(text.splitlines())
        if _LEFT_OUT.isdisjoint(inner):
            for edit in edits_of(text):
                if edit.line in executed.get(file, ()):
                    edits[package][edit.operator.value].append((file, edit))
    return {name: Package(sizes[name], of_package) for name, of_package in edits.items()}


def draw_edit(packages: Mapping[str, Package], number: int) -> Mutant:
    """The edit of a number, the same for the same sources and lines."""
    left = number * _GOLDEN % 1 * sum(package.num_lines for package in packages.values())
    for package in packages.values():
        left -= package.num_lines
        if left < 0:
            break
    chance = random.Random(f"{SEED} {number}")
    file, edit = chance.choice(package.edits[chance.choice(sorted(package.edits))])
    return Mutant(f"edit {number}", f"src/ullage/{file}", edit.line, edit.before, edit.after)


def draw_mends() -> Iterator[Mutant]:
    """The mends of the history, in an order that the seed draws.

    benchmarks/net/mends.csv has each commit since 22 November whose part in src mends a fault and
    could be taken back when the file was written, with the fault. Commits that later ones build on
    are not there: without them src does not import.
    """
    with _MENDS.open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    random.Random(SEED).shuffle(rows)
    for row in rows:
        yield Mutant(f"mend {row['commit']}", "", 0, row["fault"], "")
