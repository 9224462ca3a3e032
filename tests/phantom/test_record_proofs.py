"""What a recording promises of the program that it records, each shown on the bare phantom."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.bare_gpu import bare_environment
from tests.phantom.conftest import execute, find_program

import ullage
from ullage import explain_file, read_recording
from ullage.log.reader import read_record

pytestmark = [pytest.mark.phantom, pytest.mark.fresh]
SOURCE = str(Path(ullage.__file__).parents[1])
Proof = Callable[..., dict[str, Any]]


@pytest.fixture
def prove(thin_python: Path, tmp_path: Path) -> Proof:
    """`prove("slots", "events")` runs that part of the program, and returns what it printed."""

    def run(what: str, mode: str, **others: str) -> dict[str, Any]:
        program = find_program("recording/proofs.py")
        command = [str(thin_python), program, SOURCE, str(tmp_path), what, mode]
        variables = dict(bare_environment(thin_python, XDG_RUNTIME_DIR=str(tmp_path), **others))
        code, stdout, stderr = execute(command, tmp_path, variables)
        assert code == 0, stderr
        document: dict[str, Any] = json.loads(stdout.splitlines()[-1])
        return document

    return run


@pytest.mark.slow(but=("events",))
@pytest.mark.parametrize("mode", ["events", "counters"])
def test_steps_that_a_real_scaler_skips_are_counted(prove: Proof, mode: str) -> None:
    document = prove("scaler", mode)
    assert document["counts"] == [0, 1, 1, 1, 2, 2]
    scales = document["scales"]
    assert scales[1] == scales[0] / 2 and scales[4] == scales[0] / 4, "the scaler did skip"


@pytest.mark.slow
def test_detached_each_slot_holds_the_address_that_it_held(prove: Proof) -> None:
    document = prove("slots", "events")
    assert document["num_hooked"] >= 3, "the allocator's two calls, and some of the libraries'"
    assert document["left"] == [] and document["ours"] == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["full", "events"])
def test_a_torch_that_cannot_be_hooked_is_recorded_by_its_own_history(
    prove: Proof, mode: str
) -> None:
    document = prove("unhooked", mode)
    assert not document["has_hook"] and document["is_same"]
    path = Path(document["file"])
    record = read_record(path)
    assert any("reports its allocations in a way not known" in text for text in record.warnings)
    assert len(record.events) == 0 and not record.marks and len(record.claims.name) == 0
    assert record.measured is not None and record.measured.num_steps == 4
    peaks = [row.allocated_bytes for row in record.measured.step_peaks]
    assert max(peaks) == document["peak"] == record.devices[0].peak_allocated_bytes
    explanation = explain_file(path)
    assert explanation.report.devices[0].peak_allocated_bytes == document["peak"]
    assert read_recording(path).peak_allocated_bytes == document["peak"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["full", "counters"])
def test_the_random_numbers_of_the_gpu_are_the_programs_own(prove: Proof, mode: str) -> None:
    document = prove("random", mode)
    assert document["is_same"]
    assert document["moves"], "another course would be seen"


@pytest.mark.slow
def test_a_program_with_another_allocator_goes_on(prove: Proof) -> None:
    # PyTorch refuses it an observer of failures.
    document = prove("random", "counters", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
    assert document["is_same"] and document["moves"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["events", "counters"])
def test_a_defect_at_each_step_is_said_once_and_ends_the_steps(prove: Proof, mode: str) -> None:
    document = prove("failing", mode)
    assert document["num_calls"] == 1 and document["grown"] == 0
    (warning,) = read_record(Path(document["file"])).warnings
    assert "a callback of ullage failed: ValueError: a defect" in warning


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["events", "counters"])
def test_failures_have_positions_in_the_events_that_are_there(prove: Proof, mode: str) -> None:
    record = read_record(Path(prove("out_of_memory", mode)["file"]))
    positions = [oom.position for oom in record.ooms]
    assert len(positions) == 3 and record.warnings == ()
    assert all(positions) if mode == "events" else not any(positions)
