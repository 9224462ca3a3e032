"""What the rules find in a corpus of programs and recordings is what was judged by hand
(tests/golden/findings.csv): no more, no less, at the same line and of the same size.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.findings import (
    ESTIMATE,
    PLACES,
    SNAPSHOTS,
    differences,
    find_rows,
    play,
    read_table,
)

from ullage.explain.rules.registry import RULES

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]
TABLE = read_table()
MARKS = {"test": (), "all": pytest.mark.slow, "nightly": pytest.mark.nightly}
PROGRAMS = [
    pytest.param(name, marks=MARKS[rows[0].tier], id=name)
    for name, rows in TABLE.items()
    if rows[0].gpu and not rows[0].program.startswith(ESTIMATE)
]
OTHERS = [
    name for name, rows in TABLE.items() if not rows[0].gpu or rows[0].program.startswith(ESTIMATE)
]


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_found_in_a_program_was_judged(run_program: RunProgram, name: str) -> None:
    program = TABLE[name][0]
    outcome = run_program(*program.program.split(), gpu=program.gpu)
    if "No module named" in str(outcome.document.get("reason")):
        pytest.skip(f"not in this environment: {outcome.document['reason']}")
    found = find_rows(program, outcome.directory / "snapshot.pickle")
    assert not [*differences(TABLE[name], found)]


@pytest.mark.nightly
@pytest.mark.parametrize("name", OTHERS)
def test_what_is_found_in_a_recording_or_an_estimated_loop_was_judged(
    thin_python: Path, tmp_path: Path, name: str
) -> None:
    program = TABLE[name][0]
    found = find_rows(program, play(program, str(thin_python), tmp_path))
    assert not [*differences(TABLE[name], found)]


def test_each_recording_and_each_example_is_in_the_table_and_each_finding_has_a_reason() -> None:
    programs = {rows[0].program.split()[0] for rows in TABLE.values()}
    recordings = {path.name.partition(".")[0] for path in SNAPSHOTS.glob("*.xz")}
    examples = {path.relative_to(PLACES[0]).as_posix() for path in PLACES[0].rglob("*.py")}
    assert recordings <= programs
    # A server runs until it is stopped, and a model is not a program.
    assert examples - programs == {"serving/serve.py", "out_of_memory/model.py"}
    for row in (row for rows in TABLE.values() for row in rows if row.rule):
        assert row.rule in RULES and len(row.why) > 20, row


def test_what_differs_is_told() -> None:
    before = TABLE["gpt2/train.py on h100-80gb"]
    assert not [*differences(before, before)]
    first, *rest = before
    name = f"{first.name} {first.rule} {first.gain_bytes} {first.line}"
    assert [*differences(before, rest)] == [f"judged, not found: {name}"]
    assert [*differences(rest, before)] == [f"found, not judged: {name}"]
