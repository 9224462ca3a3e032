"""When asynchronous work is done: as late as can be in the run, at once in the other end.

How many blocks a case needs at either end is worked out by hand: a block that another stream has
used is free again when the host has waited, one way or another, for what that stream had to do with
it; at once, one block serves all rounds (two where the next batch comes beside the current one).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ullage
from ullage.ground.errors import EnvironmentProblem

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]

MIB = 2**20
BLOCK = 64 * MIB
AT_ONCE = (("ULLAGE_COMPLETION", "at_once"),)
FSDP1 = ("distributed/fsdp1.py", ("--world-size", "4", "--rank", "0"))


@dataclass(frozen=True, slots=True)
class Case:
    """Blocks that are needed, by what the host waits for."""

    name: str
    late: int
    at_once: int = 1


CASES = (
    Case("nothing_waits", 4),
    Case("another_stream_synchronize", 4),
    Case("event_before", 2),  # the event of a round comes after the use of the round before
    Case("main_reads", 4),
    Case("prefetch", 5, 2),
    Case("measures_time", 4),
    Case("device_synchronize", 1),
    Case("stream_synchronize", 1),
    Case("event_synchronize", 1),
    Case("main_waits_and_reads", 1),
    Case("chain", 1),
    Case("poll", 1),
    Case("idle_stream", 1),
    Case("to_pageable", 1),
    Case("prefetch_and_read", 2, 2),
)


def run(run_program: RunProgram, case: str, *more: str, **how: Any) -> Any:
    outcome = run_program("streams.py", case, *more, **how)
    assert outcome.exit_code == 0, outcome.stderr
    return outcome


def held_back(outcome: Any) -> list[Any]:
    """The assumptions that are about when work is done."""
    made = outcome.document["basis"]["allocator"]["assumptions"]
    return [one for one in made if "asynchronous work" in one["what"]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_block_is_free_when_the_host_has_waited_for_its_use(
    run_program: RunProgram, case: Case
) -> None:
    outcome = run(run_program, case.name)
    assert outcome.printed["blocks"] == case.late
    device = outcome.device
    assert device["peak_reserved_high_bytes"] == device["peak_reserved_bytes"]
    assert device["peak_reserved_high_bytes"] // BLOCK == case.late
    assert device["peak_reserved_low_bytes"] // BLOCK == case.at_once


@pytest.mark.parametrize("case", [case for case in CASES if case.late > case.at_once],
                         ids=lambda case: case.name)  # fmt: skip
def test_the_lower_end_is_what_a_device_needs_that_does_all_at_once(
    run_program: RunProgram, case: Case
) -> None:
    measured, device = run(run_program, case.name, env=AT_ONCE), run(run_program, case.name).device
    assert measured.device["peak_reserved_bytes"] == device["peak_reserved_low_bytes"]
    assert measured.printed["blocks"] == case.at_once
    assert not held_back(measured)


def test_the_ends_are_in_the_basis_and_the_room_left_goes_by_the_upper(
    run_program: RunProgram,
) -> None:
    outcome = run(run_program, "nothing_waits")
    device, (assumed,) = outcome.device, held_back(outcome)
    assert (assumed["low_bytes"], assumed["high_bytes"]) == (
        device["peak_reserved_low_bytes"],
        device["peak_reserved_high_bytes"],
    )
    assert assumed["count"] == device["num_held_blocks"] == 3
    assert device["held_at_peak_bytes"] == 3 * BLOCK
    used = device["total_bytes"] - device["headroom_bytes"]
    assert used == device["peak_used_bytes"]
    assert used == device["peak_reserved_high_bytes"] + device["context_high_bytes"]
    context = device["context_high_bytes"] - device["context_low_bytes"]
    above = device["headroom_high_bytes"] - device["headroom_bytes"] - context
    assert above >= assumed["high_bytes"] - assumed["low_bytes"]


@pytest.mark.parametrize("case", [case for case in CASES if case.late == case.at_once],
                         ids=lambda case: case.name)  # fmt: skip
def test_where_the_host_waits_nothing_hangs_on_it(run_program: RunProgram, case: Case) -> None:
    outcome = run(run_program, case.name)
    assert not held_back(outcome)
    assert outcome.document["basis"]["allocator"]["kind"] in ("exact", "assumed")
    assert outcome.device["num_held_blocks"] == 0


def test_without_another_stream_both_ends_are_one_run(run_program: RunProgram) -> None:
    late, once = run_program("peaks.py"), run_program("peaks.py", env=AT_ONCE)
    assert late.record.num_not_yet == once.record.num_not_yet == 0
    for column in ("size_bytes", "reserved_bytes", "kind", "device"):
        ends = (getattr(one.record.events, column).tolist() for one in (late, once))
        assert len({tuple(end) for end in ends}) == 1, column


def test_two_runs_are_alike(run_program: RunProgram) -> None:
    first, second = (run(run_program, "prefetch", turn=turn) for turn in range(2))
    for column in ("address", "size_bytes", "reserved_bytes", "kind"):
        ends = (getattr(one.record.events, column).tolist() for one in (first, second))
        assert len({tuple(end) for end in ends}) == 1, column
    traces = [
        [
            (event["action"], event["addr"], event["size"])
            for event in one.snapshot["device_traces"][0]
        ]
        for one in (first, second)
    ]
    assert traces[0] == traces[1]


def test_a_question_is_answered_by_what_the_host_has_waited_for(run_program: RunProgram) -> None:
    """An event that was never recorded, and a stream without work, have nothing to wait for."""
    seen = run(run_program, "asks").printed["seen"]
    assert seen == [[[False, False, True, True], [True, True]]] * 4


def test_a_loop_that_waits_by_asking_ends(run_program: RunProgram) -> None:
    polls = run(run_program, "poll").printed["polls"]
    assert len(polls) == 4
    assert all(0 < count < 1000 for count in polls)


def test_a_thread_that_only_looks_on_changes_nothing(run_program: RunProgram) -> None:
    outcome = run(run_program, "looks_on")
    assert outcome.printed["seen"] == [[False, True, False]] * 4
    assert outcome.printed["blocks"] == 4


def test_the_time_between_events_is_told_without_waiting(run_program: RunProgram) -> None:
    assert all(passed > 0 for passed in run(run_program, "measures_time").printed["seen"])


def test_memory_that_is_short_is_waited_for(run_program: RunProgram) -> None:
    """The allocator waits for what it holds back before it gives up, so a program that fits when
    all is done at once fits: with room for 11 blocks, 30 rounds of it.
    """
    gpu = run(run_program, "nothing_waits").device
    room = gpu["context_high_bytes"] + 12 * BLOCK
    options = ("--memory", f"{room // MIB}MiB")
    outcome = run(run_program, "nothing_waits", "30", options=options)
    assert outcome.printed["retries"] > 0
    assert outcome.document["verdict"] == "fits"
    assert outcome.device["num_ooms"] == 0
    assert outcome.device["peak_reserved_bytes"] <= 12 * BLOCK


@pytest.mark.slow
def test_pinned_memory_is_reused_when_its_copy_is_done(run_program: RunProgram) -> None:
    size = 4 * MIB
    document = run(run_program, "pinned").document
    assert (document["pinned_low_bytes"], document["pinned_peak_bytes"]) == (size, 4 * size)
    assert run(run_program, "pinned", env=AT_ONCE).document["pinned_peak_bytes"] == size
    assert run(run_program, "pinned_synchronize").document["pinned_peak_bytes"] == size


@pytest.mark.slow
def test_fully_sharded_training_has_both_ends(run_program: RunProgram) -> None:
    """FSDP1 gathers parameters on a stream of its own."""
    name, options = FSDP1
    late = run_program(name, options=options)
    once = run_program(name, options=options, env=AT_ONCE)
    assert late.exit_code == once.exit_code == 0, late.stderr
    device = late.device
    assert device["peak_reserved_low_bytes"] <= device["peak_reserved_high_bytes"]
    assert device["peak_allocated_bytes"] == once.device["peak_allocated_bytes"]
    assert device["peak_reserved_low_bytes"] == once.device["peak_reserved_bytes"]


def test_a_replay_that_fails_loses_no_run(
    thin_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise EnvironmentProblem("the replay ended with 1")

    monkeypatch.setattr("ullage.explain.whatif.other_ends.measure_at_once", fail)
    program = Path(__file__).parents[1] / "programs" / "streams.py"
    words = [str(program), "nothing_waits"]
    run = ullage.run(words, python=thin_python, snapshot=tmp_path / "run.pickle")
    assert run.exit_code == 0
    assert run.peak_reserved_bytes // BLOCK == 4
    assert run.report.warnings[0].endswith("was not measured: the replay ended with 1")
