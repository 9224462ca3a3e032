"""A recording of a program without end takes as much memory, and as large a file, as it may."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.bare_gpu import bare_environment
from tests.phantom.conftest import execute, find_program

import ullage
from ullage.ground.units import MIB
from ullage.log.reader import read_record
from ullage.players.inside.entrances.settings import Mode, RecordingSettings

pytestmark = [pytest.mark.phantom, pytest.mark.fresh]
SOURCE = str(Path(ullage.__file__).parents[1])
SETTINGS = RecordingSettings(mode=Mode.EVENTS, ring_bytes=MIB)
ROUNDS = 6
# The phantom itself keeps what every event was.
PHANTOM_EVENT_BYTES, NOISE_BYTES = 32, 3 * MIB
# By day the two that have nothing in common; of the others each finds what its name says.
BY_DAY = ("forwards", "training")
BY_NIGHT = ("idle", "models", "failures", "holders")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [*BY_DAY, *(pytest.param(kind, marks=pytest.mark.nightly) for kind in BY_NIGHT)]
)
def test_what_runs_on_and_on_takes_no_more(thin_python: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "run.pickle"
    program = find_program("recording/endless.py")
    command = [str(thin_python), program, SOURCE, str(path), kind, str(ROUNDS)]
    variables = dict(bare_environment(thin_python, gpu="t4", XDG_RUNTIME_DIR=str(tmp_path)))
    code, stdout, stderr = execute(command, tmp_path, variables)
    assert code == 0, stderr
    rounds: list[dict[str, Any]] = json.loads(stdout.splitlines()[-1])
    limits = SETTINGS.limits
    for each in rounds:
        rows = each["rows"]
        # Where no step ended, each whole forward is given one as the record is written.
        assert rows["marks"] <= 2 * limits.num_marks
        assert rows["claims"] <= limits.num_claims
        assert rows["holders"] <= limits.num_holders and rows["graphs"] <= limits.num_holders
        assert rows["workspaces"] <= limits.num_workspaces
        assert rows["ooms"] <= limits.num_ooms
        assert rows["modules"] <= limits.num_scopes
        assert each["steps"] <= limits.num_steps
        assert rows["warnings"] <= 4
        assert each["file_bytes"] <= SETTINGS.ring_bytes
    middle, last = rounds[ROUNDS // 2 - 1], rounds[-1]
    if kind in BY_DAY:
        assert middle["lost"] > SETTINGS.event_ring_bytes // 32, "the ring was full more than once"
        assert last["lost"] > 1.5 * middle["lost"]
    grown_bytes = last["resident_bytes"] - middle["resident_bytes"]
    assert grown_bytes <= PHANTOM_EVENT_BYTES * (last["lost"] - middle["lost"]) + NOISE_BYTES
    record = read_record(path)
    assert record.devices[0].total_bytes > 0
    if kind == "training":  # what lives on has its owner
        assert rounds[-1]["rows"]["claims"] > 100
    if kind == "forwards":
        assert any("marks of phases and steps are not" in text for text in last["warnings"])
