"""Holds what the rules of `ullage explain` find in a corpus of programs to what was judged by hand.

    python -m benchmarks.findings --python .envs/torch-newest/bin/python            # compares
    python -m benchmarks.findings --python .envs/torch-newest/bin/python --write    # records

TABLE has a row for each finding, and one for each program in which nothing is found. A program is a
file of examples/ or tests/programs with its flags, a recording of tests/golden/snapshots, or a case
of benchmarks/accuracy/estimate ("estimate: NAME"). `tier` is which tests play it. `why` says what
in the program makes the finding right: --write keeps it, and leaves it empty where a finding is
new, which fails the tests until somebody has read the program. A new program is a row with its
first three cells.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

from benchmarks.accuracy.estimate.__main__ import find_cases
from benchmarks.accuracy.estimate.case import FOLDER
from ullage.explain.rules.rule import Finding
from ullage.verbs.explain.function import explain_file

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "tests" / "golden" / "findings.csv"
SNAPSHOTS = ROOT / "tests" / "golden" / "snapshots"
PLACES = (ROOT / "examples", ROOT / "tests" / "programs")
MAIN = "from ullage.cli import main; main()"
ESTIMATE = "estimate: "
TIMEOUT_S = 900
VARIES = "varies"
_LINE = re.compile(r"([^\s/]+/)*([^\s/]+\.py:\d+)")


@dataclass(frozen=True, slots=True)
class Row:
    """A finding, or a program without one.

    Attributes:
        program: its file and flags, or the name of a recording or a case.
        gpu: on which it is played; empty for a recording.
        tier: of the test that plays it: test, all, or nightly.
        rule: its code; empty where nothing is found.
        gain_bytes: by how much the peak falls at most.
        line: the first line of code that the evidence names.
        why: the finding is right.
    """

    program: str
    gpu: str
    tier: str
    rule: str = ""
    gain_bytes: str = ""
    line: str = ""
    why: str = ""

    @property
    def name(self) -> str:
        """How a test calls the program."""
        return f"{self.program} on {self.gpu}" if self.gpu else self.program

    @property
    def measured(self) -> tuple[str, str, str, str]:
        """What a play says: all but the judgement."""
        return self.name, self.rule, self.gain_bytes, self.line


def read_table() -> dict[str, list[Row]]:
    """The rows of each program, by its name."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = [Row(**cells) for cells in csv.DictReader(file)]
    table: dict[str, list[Row]] = {}
    for row in rows:
        table.setdefault(row.name, []).append(row)
    return table


def write_table(rows: Iterable[Row]) -> None:
    """Writes all rows."""
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in fields(Row))
        writer.writerows(map(astuple, rows))


def words_of(program: Row, directory: Path) -> list[str]:
    """The words after `ullage run` that play a program."""
    if not program.program.startswith(ESTIMATE):
        file, *flags = program.program.split()
        path = next(place / file for place in PLACES if (place / file).exists())
        return ["--gpu", program.gpu, "--", str(path), *flags]
    name = program.program.removeprefix(ESTIMATE)
    case = next(case for cases in find_cases(None).values() for case in cases if case.name == name)
    config = directory / "config.json"
    config.write_text(json.dumps(dict(case.config)), encoding="utf-8")
    options = ["--gpu", case.gpu, *case.options, "--assume", "experts=balanced"]
    return [*options, "--", str(FOLDER / case.program), *case.arguments(config)]


def play(program: Row, python: str, directory: Path) -> Path:
    """Plays a program, or unpacks a recording; its snapshot."""
    snapshot = directory / "snapshot.pickle"
    if not program.gpu:
        packed = (SNAPSHOTS / f"{program.program}.pickle.xz").read_bytes()
        snapshot.write_bytes(lzma.decompress(packed))
        return snapshot
    command = [
        *(sys.executable, "-c", MAIN, "run", "--python", python),
        *("--snapshot", str(snapshot), *words_of(program, directory)),
    ]
    snapshot.unlink(missing_ok=True)
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{program.name}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return snapshot


def find_rows(program: Row, snapshot: Path) -> list[Row]:
    """What the rules find in the snapshot of a program, in the order of the report."""
    bare = Row(program.program, program.gpu, program.tier)
    return [
        replace(
            bare, rule=finding.rule.code, gain_bytes=str(finding.gain_bytes), line=_line(finding)
        )
        for finding in explain_file(snapshot).findings
    ] or [bare]


def _line(finding: Finding) -> str:
    match = _LINE.search("\n".join((finding.what, *finding.evidence)))
    return "" if match is None else match[2]


def differences(before: Sequence[Row], now: Sequence[Row]) -> Iterator[str]:
    """What is found and was not judged, and what was judged and is not found."""
    rows = with_judgements(before, now)
    expected, found = ({row.measured: row for row in each} for each in (before, rows))
    yield from (f"found, not judged: {' '.join(key)}" for key in found if key not in expected)
    yield from (f"judged, not found: {' '.join(key)}" for key in expected if key not in found)
    for row in before:
        if row.rule and row.measured in found and not row.why:
            yield f"no judgement: {' '.join(row.measured)}"


def with_judgements(before: Sequence[Row], now: Sequence[Row]) -> list[Row]:
    """The rows that were found, each with the judgement of its rule there. A size that was judged
    to vary from run to run stays so: of what the garbage collector frees, or where an old address
    on the stack counts as a use.
    """
    judged = {row.rule: row for row in before}
    return [
        replace(
            row, why=known.why, gain_bytes=VARIES if known.gain_bytes == VARIES else row.gain_bytes
        )
        if (known := judged.get(row.rule))
        else row
        for row in now
    ]


def main() -> int:
    """Records or compares; 1: something differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", required=True)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("names", nargs="*", help="programs whose names hold one of these")
    options = parser.parse_args()
    python, table, changed = str(Path(options.python).absolute()), read_table(), 0
    for name, before in table.items():
        if options.names and not any(part in name for part in options.names):
            continue
        with tempfile.TemporaryDirectory(prefix="ullage-findings-") as directory:
            now = find_rows(before[0], play(before[0], python, Path(directory)))
        lines = list(differences(before, now))
        changed += bool(lines)
        print(f"{name}: {len(lines)} differences", *lines, sep="\n  ", flush=True)
        if options.write:
            table[name] = with_judgements(before, now)
            write_table(row for rows in table.values() for row in rows)
    return int(changed and not options.write)


if __name__ == "__main__":
    sys.exit(main())
