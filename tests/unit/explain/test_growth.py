"""What grows: something that really repeats, and stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ullage.explain.snapshot import SnapshotReport
from ullage.ground.units import MIB

ReportOf = Callable[..., SnapshotReport]


def steps(pattern: str, count: int) -> str:
    """A pattern repeated, # standing for the number of the step."""
    return "[2048 w+8@main:1 " + " ".join(pattern.replace("#", str(n)) for n in range(count))


def grown(report: SnapshotReport) -> list[tuple[str, int]]:
    """The lines that grow, and how fast in MiB a step."""
    (device,) = report.devices
    return [
        (report.sites.names[one.site], round(one.bytes_per_step / MIB)) for one in device.growth
    ]


def test_a_line_whose_blocks_stay_grows(report_of: ReportOf) -> None:
    report = report_of(steps("x#+4@main:5 y#+2@main:6 x#- S", 6))
    assert grown(report) == [("train.py:6 in main", 2)]
    (growth,) = report.devices[0].growth
    assert growth.size_bytes == 4 * 2 * MIB  # from the second step to the last
    assert growth.num_blocks == 4
    assert not growth.is_replaced


def test_what_is_freed_in_the_next_step_does_not_grow(report_of: ReportOf) -> None:
    script = "[64 y0+2@main:6 S " + " ".join(f"y{n + 1}+2@main:6 y{n}- S" for n in range(6))
    assert grown(report_of(script)) == []


def test_what_comes_in_the_first_step_alone_does_not_grow(report_of: ReportOf) -> None:
    states = " ".join(f"s{n}+2@main:7" for n in range(40))
    script = f"[2048 x+4@main:5 {states} x- S " + steps("x#+4@main:5 x#- S", 5).partition(" ")[2]
    assert grown(report_of(script)) == []


def test_too_few_steps_say_nothing(report_of: ReportOf) -> None:
    assert grown(report_of(steps("y#+2@main:6 S", 3))) == []


def test_a_cache_that_fills_and_stays_is_no_growth(report_of: ReportOf) -> None:
    script = steps("y#+2@main:6 S", 6) + " " + " ".join("x+2@main:7 x- S" for _ in range(9))
    assert grown(report_of(script)) == []


def test_a_tensor_that_is_replaced_by_a_larger_one_grows(report_of: ReportOf) -> None:
    script = "[2048 c0+100@cat:9 S " + " ".join(
        f"c{n + 1}+{101 + n}@cat:9 c{n}- S" for n in range(8)
    )
    report = report_of(script)
    assert grown(report) == [("train.py:9 in cat", 1)]
    assert report.devices[0].growth[0].is_replaced


@pytest.mark.parametrize("has_record", [True, False])
def test_the_result_is_the_same_with_and_without_a_record(
    report_of: ReportOf, *, has_record: bool
) -> None:
    script = steps("F x#+4@main:5 y#+2@main:6 f x#- S", 6)
    assert grown(report_of(script, has_record=has_record)) == [("train.py:6 in main", 2)]


def test_a_list_that_a_guessed_loop_fills_and_the_program_drops_is_no_growth(
    report_of: ReportOf,
) -> None:
    turns = " ".join(f"x{n}+4@main:5 y{n}+2@main:6 z{n}+2@main:7 x{n}- z{n}-" for n in range(8))
    script = "[2048 " + turns
    assert grown(report_of(script, external_annotations=[])) == [("train.py:6 in main", 2)]
    script += " ".join(f" y{n}-" for n in range(8))
    assert grown(report_of(script, external_annotations=[])) == []


def test_what_a_line_outside_of_modules_keeps_grows_by_its_calls(report_of: ReportOf) -> None:
    turns = " ".join(f"x{n}+4@main:5 y{n}+3@main:6 z{n}+2@main:6 x{n}- y{n}-" for n in range(9))
    report = report_of("[2048 w+8@main:1 " + turns, has_record=True)
    assert grown(report) == [("train.py:6 in main", 2)]
    (growth,) = report.devices[0].growth
    assert (growth.unit, growth.is_replaced) == ("call", False)
    assert report.devices[0].course.num_steps == 0


def test_layers_that_are_made_before_the_work_are_no_growth(report_of: ReportOf) -> None:
    layers = " ".join(f"w{n}+4@main:5" for n in range(9))
    work = " ".join(f"x{n}+2@main:7 x{n}-" for n in range(30))
    assert grown(report_of(f"[2048 {layers} {work}", has_record=True)) == []


def test_what_an_evaluation_keeps_after_the_training_grows_by_its_passes(
    report_of: ReportOf,
) -> None:
    training = " ".join(f"F x{n}+4@main:5 f B b O o x{n}- S" for n in range(4))
    evaluation = " ".join(
        f"N y{n}+3@main:7 f c{n}+{3 * n + 3}@main:8 y{n}- " + (f"c{n - 1}-" if n else "")
        for n in range(8)
    )
    report = report_of(f"[2048 {training} {evaluation}", has_record=True)
    assert grown(report) == [("train.py:8 in main", 3)]
    (growth,) = report.devices[0].growth
    assert (growth.unit, growth.is_replaced) == ("forward pass", True)
