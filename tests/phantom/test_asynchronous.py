"""Asynchronous collectives: two runs are alike, and both ends are stated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from benchmarks.asynchronous import CASES

RunProgram = Callable[..., Any]

PROGRAM = "distributed/asynchronous.py"
RANK = ("--world-size", "8", "--rank", "0")
AT_ONCE = {"ULLAGE_COMPLETION": "at_once"}
COLUMNS = ("address", "size_bytes", "reserved_bytes", "kind", "device")
REPETITIONS = 10
CASE = "dropped_handles"


def run(run_program: RunProgram, case: str, **how: Any) -> Any:
    outcome = run_program(PROGRAM, case, options=RANK, **how)
    assert outcome.exit_code == 0, outcome.stderr
    return outcome


def trace_of(outcome: Any) -> tuple[Any, ...]:
    return tuple(tuple(getattr(outcome.record.events, name).tolist()) for name in COLUMNS)


@pytest.mark.slow
def test_two_runs_are_alike(run_program: RunProgram) -> None:
    first, second = (run(run_program, CASE, turn=turn) for turn in range(2))
    assert trace_of(first) == trace_of(second)


@pytest.mark.slow
def test_the_interval_has_what_is_allocated_with_all_work_done_at_once(
    run_program: RunProgram,
) -> None:
    late, once = run(run_program, CASE), run(run_program, CASE, env=AT_ONCE)
    device = late.device
    peaks = [one.device["peak_allocated_bytes"] for one in (once, late)]
    assert device["peak_allocated_low_bytes"] <= peaks[0] < peaks[1]
    assert device["peak_allocated_high_bytes"] == peaks[1]
    assert device["peak_reserved_low_bytes"] < device["peak_reserved_high_bytes"]
    (made,) = (
        assumption
        for assumption in late.document["basis"]["allocator"]["assumptions"]
        if assumption["what"].startswith("allocated for collectives")
    )
    assert made["count"] > 0
    assert made["low_bytes"] == device["peak_allocated_low_bytes"]
    assert made["high_bytes"] == device["peak_allocated_high_bytes"]


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES)
def test_ten_runs_are_alike(run_program: RunProgram, case: str) -> None:
    traces = {trace_of(run(run_program, case, turn=turn)) for turn in range(REPETITIONS)}
    assert len(traces) == 1
