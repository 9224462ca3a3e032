"""Processes of one run that use one GPU: one account, however they came into being."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.phantom.conftest import find_program

import ullage
from ullage.ground.units import GIB, MIB

pytestmark = [pytest.mark.phantom, pytest.mark.slow]
RunProgram = Callable[..., Any]
CONTEXT_BYTES = 752 * MIB  # of an A100, at most
KILLED = "processes/killed.py"


def run_ranks(run_program: RunProgram, *words: str) -> Any:
    """Two ranks on a machine with two GPUs of 80 GB."""
    program = find_program("processes/one_gpu.py")
    launch = ("torchrun", "--nproc-per-node", "2", program, *words)
    return run_program(*launch, gpu="a100-80gb", options=("--gpus", "2"))


def printed(outcome: Any) -> list[dict[str, int]]:
    return [json.loads(line) for line in outcome.stderr.splitlines() if line.startswith('{"')]


def test_two_ranks_on_one_gpu_fill_it_together(run_program: RunProgram) -> None:
    outcome = run_ranks(run_program, "50", "50")
    document = outcome.document
    assert document["verdict"] == "out_of_memory"
    assert document["reason"].startswith("no room for 50.0 GiB at one_gpu.py:")
    assert document["reason"].endswith("other processes held 50.7 GiB of it")


def test_what_two_ranks_hold_of_one_gpu_adds_up(run_program: RunProgram) -> None:
    outcome = run_ranks(run_program, "30", "30")
    document = outcome.document
    used_bytes = 60 * GIB + 2 * CONTEXT_BYTES
    assert document["verdict"] == "fits"
    assert [line["used"] for line in printed(outcome)] == [used_bytes] * 2
    assert [device["peak_used_bytes"] for device in document["devices"]] == [used_bytes] * 2
    for device in document["devices"]:
        ledger = device["ledger"]
        assert ledger["other_processes_bytes"] == 30 * GIB + CONTEXT_BYTES
        free_bytes = device["total_bytes"] - used_bytes
        assert ledger["free_bytes"] == device["headroom_bytes"] == free_bytes
        # Both contexts may be smaller.
        spread_bytes = device["context_high_bytes"] - device["context_low_bytes"]
        assert device["headroom_high_bytes"] - free_bytes >= 2 * spread_bytes


def test_ranks_that_each_see_a_gpu_of_their_own_share_none(run_program: RunProgram) -> None:
    outcome = run_ranks(run_program, "50", "50", "--apart")
    assert outcome.document["verdict"] == "fits"
    assert [line["used"] for line in printed(outcome)] == [50 * GIB + CONTEXT_BYTES] * 2
    assert [device["other_processes_bytes"] for device in outcome.document["devices"]] == [0, 0]


def test_ranks_that_load_before_they_set_their_device_hold_contexts_on_the_first(
    run_program: RunProgram,
) -> None:
    launch = ("torchrun", "--nproc-per-node", "4", find_program("processes/loads_first.py"))
    outcome = run_program(*launch, gpu="a100-80gb", options=("--gpus", "4"))
    document = outcome.document
    assert document["verdict"] == "fits"
    first = [device for device in document["devices"] if device["index"] == 0]
    # Each other rank has a context there, and its segments: of the checkpoint it loaded twice.
    others = [device for device in first if device["rank"] > 0]
    assert len(others) == 3
    assert first[0]["other_processes_bytes"] == sum(
        CONTEXT_BYTES + device["peak_reserved_bytes"] for device in others
    )
    for rank in (1, 2, 3):
        report = ullage.explain_file(outcome.directory / f"snapshot-rank{rank}.pickle")
        (finding,) = [one for one in report.findings if one.rule.code == "UL134"]
        assert finding.device == 0 and "loads_first.py" in finding.evidence[0]
        assert "set_device" in finding.change and "map_location" in finding.change


def test_a_process_that_is_killed_gives_its_memory_back(run_program: RunProgram) -> None:
    outcome = run_program(KILLED, gpu="a100-80gb")
    assert outcome.document["verdict"] == "fits"
    assert printed(outcome)[0]["used"] == 50 * GIB + 2 * CONTEXT_BYTES


def test_a_process_that_lives_does_not(run_program: RunProgram) -> None:
    outcome = run_program(KILLED, "--alive", gpu="a100-80gb")
    assert outcome.document["verdict"] == "out_of_memory"
    assert "other processes held 50.7 GiB" in outcome.document["reason"]


@pytest.mark.parametrize("segments", ["", "expandable"])
def test_a_tensor_of_another_process_is_where_it_was(
    run_program: RunProgram, segments: str
) -> None:
    """CUDA IPC: its values are the same on both sides, and its bytes are taken once."""
    words = [segments] if segments else []
    outcome = run_program("processes/ipc.py", *words, gpu="a100-80gb")
    printed = outcome.printed
    assert printed["exit_code"] == 0 and outcome.document["verdict"] == "fits"
    assert (printed["values"], printed["view"], printed["after"]) == ([1, 2, 3], [2, 3], [7, 7, 7])
    assert printed["shape"] == [8 * GIB] and printed["allocated"] == 0
    large_bytes = 410 * 20 * MIB if segments else 8 * GIB  # in pieces of 20 MiB
    used_bytes = 2 * CONTEXT_BYTES + large_bytes + 2 * MIB
    assert printed["used"] == printed["used_there"] == used_bytes


def test_a_handle_of_a_process_that_has_ended_is_refused(run_program: RunProgram) -> None:
    outcome = run_program("processes/ipc_late.py", gpu="a100-80gb")
    assert "invalid resource handle" in outcome.printed["error"]
