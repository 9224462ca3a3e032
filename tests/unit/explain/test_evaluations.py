"""Which forwards without gradients are evaluation, and which are part of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ullage.answers.text import render
from ullage.explain.moments.evaluations import find_evaluations, find_rounds_of_marks
from ullage.explain.program import Program
from ullage.explain.run import RunReport, explain_run
from ullage.facts.gpus.catalog import Gpu
from ullage.log.model import Mark, Record
from ullage.log.reader import parse_mark
from ullage.verbs.run.text import run_blocks

Make = Callable[..., Record]


def marks_of(script: str) -> list[Mark]:
    """Forwards by the letter of their module, without gradients small, in evaluation mode with ';
    B a backward, S the end of a step.
    """
    rows: list[list[Any]] = []
    for position, word in enumerate(script.split()):
        if word == "B":
            rows += [[position, "backward_begin", None], [position, "backward_end", None]]
        elif word == "S":
            rows.append([position, "step", None])
        else:
            begin = {
                "grad": word[0].isupper(),
                "training": not word.endswith("'"),
                "module": ord(word[0].lower()),
            }
            rows += [[position, "forward_begin", begin], [position, "forward_end", None]]
    return list(map(parse_mark, rows))


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("m' m' M B S M B S", [(0, 2)]),  # before the first step
        ("M B S M B S m' m' m'", [(2, 3)]),  # after the last
        ("M B S m M B S M B S M B S", [(1, 1)]),  # in training mode, now and then
        ("v' M B S v' M B S v' M B S", []),  # a frozen encoder in each step
        ("v' M B S", []),  # likewise of one step
        ("m M B S m M B S m M B S", []),  # a rollout in each step
        ("v' M B S v' m' v' M B S v' M B S", [(1, 2)]),  # validation that encodes, too
        ("M t B S M t B S M t B S t", []),  # a teacher after the student
        ("M B S M B S e' e' M B S", [(2, 2)]),  # of the averaged weights
        ("m' m' m'", []),  # inference
        ("M B S M B S M'", [(2, 1)]),  # with gradients, and no backward
    ],
)
def test_evaluations_are_told_from_steps(script: str, expected: list[tuple[int, int]]) -> None:
    evaluations = find_evaluations(find_rounds_of_marks(marks_of(script)))
    assert [(one.row, one.num_forwards) for one in evaluations] == expected


def explain(record: Record, program: Program, gpu: Gpu) -> RunReport:
    return explain_run([(record, None)], program=program, torch="2", gpu=gpu, is_unlimited=False)


STEP = "F +40 f B -40 b O o S "


def test_an_evaluation_has_its_own_peak_and_steps_have_theirs(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    script = f"N +90 f -90 {STEP * 3} N +70 f -70 {STEP} N +80 -80 f"
    (device,) = explain(make_record(script), program, small_gpu).devices
    assert [(one.index, one.peak.allocated_bytes) for one in device.steps] == [
        (0, 40), (1, 40), (2, 40), (3, 40),
    ]  # fmt: skip
    assert [(one.before_step, one.peak.allocated_bytes) for one in device.evaluations] == [
        (0, 90), (3, 70), (4, 80),
    ]  # fmt: skip
    assert all(one.phases["forward"].allocated_bytes == 40 for one in device.steps)


def test_an_evaluation_is_called_one_and_not_an_unfinished_step(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    text = render(
        run_blocks(explain(make_record(f"{STEP * 2} N +70 f -70"), program, small_gpu)), full=True
    )
    assert "unfinished" not in text
    (row,) = [line for line in text.splitlines() if "evaluation" in line]
    assert row.split() == ["evaluation", "70", "B", "70", "B", "70", "B"]
