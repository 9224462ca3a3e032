"""Requests that were replayed: what a failed one makes of a run, and which of them ran when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ullage.explain.basis import allocator_basis
from ullage.explain.killed import record_of
from ullage.explain.moments.course import Course, StepSource
from ullage.explain.run import RunReport
from ullage.explain.verdict import Verdict
from ullage.facts.gpus.catalog import Gpu
from ullage.ground.units import MIB
from ullage.log.model import Category, Record, Request
from ullage.players.inside.process.levels import DeviceLevels, Levels
from ullage.players.inside.requests.requests import Noted, assume_order

Make = Callable[..., Record]
REFUSED = Noted("r.jsonl:7", {}, {}, "HTTP 500: no")
FULL = replace(REFUSED, is_out_of_memory=True)


def oom(position: int) -> dict[str, Any]:
    return {
        "position": position, "device": 0, "requested_bytes": MIB, "message": None,
        "where": "serve.py:3 in handle",
    }  # fmt: skip


def test_a_request_that_was_not_answered_fails_the_run(
    explain: Callable[..., RunReport], make_record: Make
) -> None:
    report = explain(make_record("+4"), failed_request=REFUSED)
    assert report.verdict is Verdict.FAILED
    assert report.reason == "HTTP 500: no, in request r.jsonl:7"
    unready = explain(failed_request=replace(REFUSED, where="", failure="it was not ready"))
    assert (unready.verdict, unready.reason) == (Verdict.FAILED, "it was not ready")


def test_a_request_for_which_there_was_no_room_does_not_fit(
    explain: Callable[..., RunReport], make_record: Make
) -> None:
    report = explain(make_record("+4", ooms=[oom(1)]), failed_request=FULL)
    assert report.verdict is Verdict.OUT_OF_MEMORY
    assert report.reason == ("no room for 1.0 MiB at serve.py:3 in handle, in request r.jsonl:7")
    lost = explain(make_record("+4"), failed_request=FULL)
    assert (lost.verdict, lost.reason) == (Verdict.OUT_OF_MEMORY, "no room, in request r.jsonl:7")


def test_an_out_of_memory_that_a_server_survived_is_a_warning(
    explain: Callable[..., RunReport], make_record: Make
) -> None:
    assert explain(make_record("+4", ooms=[oom(1)])).verdict is Verdict.FITS


def test_what_was_killed_has_its_peaks(explain: Callable[..., RunReport], small_gpu: Gpu) -> None:
    devices = {0: DeviceLevels(0, 1, 5, 8, 3, 0)}
    record = record_of(9, Levels("", 12, devices), small_gpu, "2.15.0")
    report = explain(record)
    (device,) = report.devices
    assert report.verdict is Verdict.FITS
    assert device.totals.peak_allocated_bytes == 5
    assert device.peak_used_bytes == 8 + 3 + small_gpu.context_high_bytes
    assert device.at_peak.by_category[Category.UNATTRIBUTED] == 5
    (warning,) = report.warnings
    assert warning.startswith("process 9 was ended before it wrote its record: its peaks are known")
    (assumption,) = report.allocator_basis.assumptions
    assert assumption.what == "who held what in a process that was killed"


def course_of(*spans: tuple[int, int]) -> Course:
    return Course(
        begin=np.array([-1]), phase=np.array([0], dtype=np.uint8), grad=np.zeros(1, np.bool_),
        step=np.zeros(1, np.int64), step_ends=np.array([4, 9]),
        source=StepSource.RECORD, has_phases=True,
        requests=tuple(Request(f"r.jsonl:{number}", *span) for number, span in enumerate(spans)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (1, "before and between requests"),
        (2, "r.jsonl:0"),
        (3, "r.jsonl:0, 1"),
        (5, "r.jsonl:1, 2, 3 and 2 more"),
        (9, "before and between requests"),
    ],
)
def test_an_event_is_told_by_the_requests_that_ran(event: int, told: str) -> None:
    course = course_of((2, 4), (3, 9), (5, 9), (5, 9), (5, 9), (4, 9))
    assert course.describe(event) == told


def test_requests_at_once_are_an_assumption(make_record: Make) -> None:
    one_by_one = [["a", 0, 2, "", False], ["b", 2, 3, "", False]]
    assert assume_order(one_by_one) == []
    at_once = [["a", 0, 2, "", False], ["b", 1, 3, "", False], ["c", 2, 3, "", False]]
    record = make_record("+4", requests=at_once, basis=assume_order(at_once))
    (assumption,) = allocator_basis([record]).assumptions
    assert (assumption.what, assumption.count) == (
        "in which order requests that run at once take memory", 2,
    )  # fmt: skip
