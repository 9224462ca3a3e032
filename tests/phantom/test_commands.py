"""The documents of a fixed set of commands have the figures that were recorded
(tests/golden/commands), and no field that tests/golden/structure.txt does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from benchmarks import commands
from benchmarks.commands import COMMANDS, DIRECTORY, Command, differences, record, unpack_snapshots

# Half a minute each, and two.
LONG = {"check-serving", "fit-as-it-is", "fit-plan"}
QUICK = [one.name for one in COMMANDS if one.name not in LONG]


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    return unpack_snapshots(tmp_path_factory.mktemp("snapshots"))


def test_each_command_has_a_recorded_document_and_the_other_way_round() -> None:
    assert {path.stem for path in DIRECTORY.iterdir()} == {one.name for one in COMMANDS}


@pytest.mark.slow(but=QUICK)
@pytest.mark.phantom
@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: one.name)
def test_a_command_answers_as_it_was_recorded(
    command: Command, thin_python: Path, snapshots: Mapping[str, str]
) -> None:
    text = record(command, str(thin_python), snapshots)
    lines = list(differences(command.name, text))
    assert not lines, "\n".join([f"{len(lines)} differences", *lines[:12]])


@pytest.mark.parametrize(
    ("now", "lines"),
    [
        ('{"bytes": 5, "rows": [1, 2]}', []),
        ('{"bytes": 5, "rows": [1, 2], "new": 1}', ["gpus.new: not in structure.txt"]),
        ('{"bytes": 6, "rows": [1, 2]}', ["gpus.bytes: 6, expected 5"]),
        ('{"bytes": 5.0, "rows": [1, 2]}', ["gpus.bytes: 5.0, expected 5"]),
        ('{"bytes": 5, "rows": [1]}', ["gpus.rows: 1 rows, expected 2"]),
        ('{"rows": [1, 2]}', ["gpus.bytes: missing, expected 5"]),
        ('{"bytes": 5, "rows": [1, 2], "loss_diff": 3e-13}', []),
        ('{"bytes": 5, "rows": [1, 2], "loss_diff": 0}', ["gpus.loss_diff: 0, expected 1e-13"]),
    ],
)
def test_what_differs_is_told(
    now: str, lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounded = ', "loss_diff": 1e-13' if "loss_diff" in now else ""
    (tmp_path / "gpus.json").write_text(f'{{"bytes": 5, "rows": [1, 2]{rounded}}}')
    (tmp_path / "structure.txt").write_text("gpus.bytes\ngpus.rows[]\ngpus.loss_diff\n")
    monkeypatch.setattr(commands, "DIRECTORY", tmp_path)
    monkeypatch.setattr(commands, "STRUCTURE", tmp_path / "structure.txt")
    assert list(differences("gpus", now)) == lines
