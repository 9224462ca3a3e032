"""The documents of a fixed set of commands are those that were recorded (tests/golden/commands)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from benchmarks.commands import COMMANDS, DIRECTORY, Command, differences, record, unpack_snapshots


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    return unpack_snapshots(tmp_path_factory.mktemp("snapshots"))


def test_each_command_has_a_recorded_document_and_the_other_way_round() -> None:
    assert {path.stem for path in DIRECTORY.iterdir()} == {one.name for one in COMMANDS}


@pytest.mark.nightly
@pytest.mark.phantom
@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: one.name)
def test_a_command_answers_as_it_was_recorded(
    command: Command, thin_python: Path, snapshots: Mapping[str, str]
) -> None:
    text = record(command, str(thin_python), snapshots)
    assert list(differences(command.name, text)) == []
