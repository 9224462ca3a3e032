"""What ended a program, of what its processes have noted."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from ullage.act.guard.end_note import EndNote, find_failure


def note(at_ns: int, rank: str | None, kind: str = "RuntimeError") -> EndNote:
    return EndNote(at_ns, rank, kind, kind, is_out_of_memory=kind == "OutOfMemoryError")


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        pytest.param([], None, id="nothing was noted"),
        pytest.param(
            [note(1, None, "OutOfMemoryError"), note(2, None, "ValueError")], 1,
            id="a process that it had started ran out, and it lived on",
        ),
        pytest.param(
            [note(1, None, "OutOfMemoryError"), note(2, None, "CalledProcessError")], 0,
            id="it ended because that process had",
        ),
        pytest.param(
            [note(1, "1", "OutOfMemoryError"), note(2, "0"), note(3, None, "ChildFailedError")], 0,
            id="the other rank loses its connection, and the launcher ends",
        ),
        pytest.param(
            [note(1, "0"), note(2, "1", "OutOfMemoryError")], 1,
            id="the connection was closed before the error was noted",
        ),
        pytest.param(
            [note(1, "1", "ValueError"), note(2, "0")], 0, id="no rank ran out of memory",
        ),
        pytest.param([note(1, None, "ChildFailedError")], 0, id="a rank was killed"),
    ],
)  # fmt: skip
def test_what_ended_a_program(tmp_path: Path, notes: list[EndNote], expected: int | None) -> None:
    directories = [tmp_path / str(number) for number in range(len(notes))]
    for directory, each in zip(directories, notes, strict=True):
        directory.mkdir()
        (directory / "end-17.json").write_text(json.dumps(asdict(each)))
        (directory / "plan-17.json").write_text("{}")
    found = find_failure(directories)
    assert found == (None if expected is None else notes[expected])
