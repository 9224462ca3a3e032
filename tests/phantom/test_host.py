"""Host memory: models that are moved cost nothing, what is read is right, what is said is so."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ullage.explain.rules.registry import find_findings
from ullage.explain.snapshot import explain_snapshot
from ullage.log.snapshot_reader import read_snapshot

pytestmark = [pytest.mark.phantom, pytest.mark.fresh]
RunProgram = Callable[..., Any]

MIB, GIB = 2**20, 2**30
REAL = ("[run] real_init = true",)
PROGRAMS = Path(__file__).parents[1] / "programs"


@pytest.mark.slow(but=("stack",))
@pytest.mark.parametrize("model", ["stack", "stack.half", "stack to bfloat16", "encoder", "llama"])
def test_a_model_that_is_built_on_the_cpu_and_moved_costs_no_host_memory(
    run_program: RunProgram, model: str
) -> None:
    outcome = run_program("host_models.py", model)
    said, document = outcome.printed, outcome.document
    assert said["fp32_bytes"] > 2 * GIB
    assert said["grown"] < said["fp32_bytes"] / 10
    assert document["host_peak_bytes"] < GIB
    assert outcome.device["peak_allocated_bytes"] >= said["device_bytes"]
    needed = document["host_needed_bytes"] - document["host_peak_bytes"]
    # All of it before a conversion; converted, the halves are there when the last whole goes.
    assert 0.95 * said["fp32_bytes"] < needed < 1.2 * said["fp32_bytes"]
    (left_out,) = (
        made for made in document["basis"]["allocator"]["assumptions"]
        if made["what"].startswith("random initialisation")
    )  # fmt: skip
    assert left_out["count"] > 20


@pytest.mark.slow
def test_with_real_initialisation_it_costs_its_size(run_program: RunProgram) -> None:
    real, left_out = (run_program("host_models.py", "stack", options=o) for o in (REAL, ()))
    said = real.printed
    assert 0.99 * said["fp32_bytes"] < said["grown"] < 1.05 * said["fp32_bytes"]
    # What is said of a machine with the GPU is what it comes to where nothing is left out.
    needed, measured = left_out.document["host_needed_bytes"], real.document["host_peak_bytes"]
    assert needed == pytest.approx(measured, rel=0.02)
    assert real.document["host_needed_bytes"] == pytest.approx(measured, rel=0.02)


@pytest.mark.slow
def test_weights_that_are_read_on_the_cpu_are_what_they_would_be(run_program: RunProgram) -> None:
    found = run_program("host_reads.py").printed
    expected = run_program("host_reads.py", options=REAL).printed
    assert len(found) > 50
    assert found == expected
    assert found["changed"] and found["versions"] == [0, 1]


@pytest.mark.slow
def test_nothing_stays_covered_once_the_weights_are_gone(run_program: RunProgram) -> None:
    assert run_program("host_covers.py").printed == [[], [], True]


@pytest.mark.slow
@pytest.mark.parametrize("mapped", [(), ("mapped",)], ids=["", "mapped"])
def test_weights_that_are_loaded_are_those_of_the_file(
    run_program: RunProgram, tmp_path: Path, mapped: tuple[str, ...]
) -> None:
    outcome = run_program("host_loads.py", str(tmp_path / "weights.pt"), *mapped)
    said = outcome.printed
    assert said["equal"] == [True] * 4
    real = run_program("host_loads.py", str(tmp_path / "others.pt"), options=REAL).printed
    assert said["sums"] == real["sums"]


@pytest.mark.slow(
    but=(
        "ways2-12",
        "ways4-1024",
    )
)
@pytest.mark.parametrize(
    ("ways", "mib"),
    [
        (("empty",), 4),
        (("method",), 8),
        (("empty", "method"), 12),
        (("empty", "again"), 4),
        (("large",), 1024),
    ],
)
def test_pinned_memory_is_counted_in_powers_of_two_and_once(
    run_program: RunProgram, ways: tuple[str, ...], mib: int
) -> None:
    document = run_program("host_pinned.py", *ways).document
    assert document["pinned_peak_bytes"] == mib * MIB


def findings_of(outcome: Any) -> set[str]:
    """The codes of what is found in the run's snapshot."""
    snapshot = read_snapshot(outcome.directory / "snapshot.pickle")
    return {finding.rule.code for finding in find_findings(explain_snapshot(snapshot))}


def test_pinned_memory_has_both_ends(run_program: RunProgram) -> None:
    eight = run_program("host_saved.py", "8")
    document = eight.document
    rounded = [1 << (size - 1).bit_length() for size in eight.printed["saved"]]
    # Copies that are done at once leave a step the blocks of the one before.
    assert document["pinned_low_bytes"] == sum(rounded)
    # Others leave it none in torch 2.15, whose copies to the host do not wait, either.
    assert sum(rounded) < document["pinned_peak_bytes"] <= 8 * sum(rounded)
    assert document["pinned_asked_bytes"] == sum(eight.printed["saved"])
    more = document["host_needed_high_bytes"] - document["host_needed_bytes"]
    assert more == document["pinned_peak_bytes"] - document["pinned_low_bytes"]
    assert "UL163" not in findings_of(eight)


def test_pinned_memory_that_is_kept_grows_whenever_copies_are_done(run_program: RunProgram) -> None:
    outcome = run_program("host_saved.py", "8", "keeps")
    rest = run_program("host_saved.py", "8").document["pinned_low_bytes"]
    assert outcome.document["pinned_low_bytes"] == rest + 8 * 64 * MIB
    assert "UL163" in findings_of(outcome)


def test_what_rounding_pins_is_said(run_program: RunProgram) -> None:
    document = run_program("host_pinned.py", "uneven").document
    assert document["pinned_peak_bytes"] == 16 * GIB
    assert document["pinned_asked_bytes"] == int(8.1 * GIB)
    (warning,) = document["warnings"]
    assert warning.startswith("16.0 GiB of host memory are pinned for 8.1 GiB")
    assert "powers of two" in warning
    assert not run_program("host_pinned.py", "large").document["warnings"]


def test_batches_of_a_data_loader_are_pinned(run_program: RunProgram) -> None:
    pinned = run_program("host_pinned.py", "loader").document["pinned_peak_bytes"]
    # Batches of 2 MiB; how many are there at once is for the threads to decide.
    assert pinned in {2 * MIB * count for count in range(1, 5)}


def test_pinned_memory_that_nobody_writes_is_needed_and_not_taken(run_program: RunProgram) -> None:
    document = run_program("host_pinned.py", "large").document
    assert document["host_peak_bytes"] < GIB
    difference = document["host_needed_bytes"] - document["host_peak_bytes"]
    assert 0.98 * GIB < difference < 1.02 * GIB


@pytest.mark.slow
def test_a_copy_from_the_device_is_needed_once_and_not_taken(run_program: RunProgram) -> None:
    outcome = run_program("host_copies.py")
    document = outcome.document
    assert document["host_peak_bytes"] < GIB
    difference = document["host_needed_bytes"] - document["host_peak_bytes"]
    assert 0.98 * GIB < difference < 1.02 * GIB
    assert "True" in outcome.stderr.splitlines(), "torch's own error where memory runs out"


@pytest.mark.slow
def test_what_the_parent_takes_does_not_count(thin_python: Path) -> None:
    program = str(PROGRAMS / "peaks.py")
    code = f"""
import json, ullage
kept = b"x" * (1500 << 20)
run = ullage.run([{program!r}], gpu="h100-80gb", python={str(thin_python)!r}, stdout_to_stderr=True)
print(json.dumps(run.document["host_peak_bytes"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert 50 * MIB < json.loads(done.stdout) < GIB
