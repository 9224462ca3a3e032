"""Steps and phases: from a record, from annotations, from stacks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ullage.explain.moments.course import Phase, StepSource
from ullage.explain.snapshot import SnapshotReport

ReportOf = Callable[..., SnapshotReport]
STEP = "F a+4@main:5 f B b+4 b- b O c+2 c- o a- S "


def test_a_record_knows_steps_and_phases(report_of: ReportOf) -> None:
    (device,) = report_of("[64 w+8 " + STEP * 2, has_record=True).devices
    course = device.course
    assert course.source is StepSource.RECORD
    assert course.num_steps == 2
    births = device.replay.blocks.birth
    phases = course.phase[course.region_at(births)].tolist()
    one = [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    assert phases == [Phase.OUTSIDE, *one, *one]
    assert course.step_at(births).tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert course.describe(int(births[-1])) == "step 1, optimizer"


def test_annotations_know_steps_alone(report_of: ReportOf) -> None:
    (device,) = report_of("[64 w+8 " + "a+4@main:5 a- S " * 3).devices
    assert device.course.source is StepSource.ANNOTATIONS
    assert device.course.num_steps == 3
    assert not device.course.has_phases
    assert device.course.step_at(device.replay.blocks.birth).tolist() == [0, 0, 1, 2]


def test_a_profiled_iteration_ends_where_the_next_begins(report_of: ReportOf) -> None:
    notes = [{"name": f"ProfilerStep#{n}", "stage": "START", "time_us": 1500 + 3000 * n,
              "device": 0} for n in range(3)]  # fmt: skip
    (device,) = report_of("[64 a+4 a- b+4 b- c+4 c-", external_annotations=notes).devices
    assert device.course.step_at(device.replay.blocks.birth).tolist() == [0, 1, 2]


def test_a_loop_is_seen_in_the_stacks(report_of: ReportOf) -> None:
    once = "x+4@main:5>forward:2 y+2@main:6 z+2@main:7 y- z- x- "
    (device,) = report_of("[64 w+8@main:1 " + once * 5, external_annotations=[]).devices
    assert device.course.source is StepSource.STACKS
    births = device.replay.blocks.birth
    assert device.course.step_at(births).tolist() == [0, *np.repeat(range(5), 3)]


def test_a_loop_over_layers_is_none_over_steps(report_of: ReportOf) -> None:
    layers = " ".join(
        f"x{n}+2@main:5>_call_impl:1>forward:9>forward:{20 + part}"
        for n, part in enumerate([0, 1, 2] * 6)
    )
    (device,) = report_of(f"[256 {layers}", external_annotations=[]).devices
    assert device.course.source is StepSource.NONE
    assert device.course.describe(3) == ""


def test_steps_that_no_event_follows_are_counted(report_of: ReportOf) -> None:
    (device,) = report_of("[64 a+4@main:5 S S", has_record=True).devices
    assert device.course.step_ends.tolist() == [2, 2]
