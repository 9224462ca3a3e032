"""An optimizer that calls forward and backward itself: what they hold is not the optimizer's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ullage.trace.model import MarkKind

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]


def test_each_call_of_a_closure_is_a_forward_a_backward_and_an_update(
    run_program: RunProgram,
) -> None:
    outcome = run_program("closure.py")
    assert outcome.exit_code == 0
    evaluation = [
        MarkKind.FORWARD_BEGIN, MarkKind.FORWARD_END,
        MarkKind.BACKWARD_BEGIN, MarkKind.BACKWARD_END,
        MarkKind.OPTIMIZER_BEGIN, MarkKind.OPTIMIZER_END,
    ]  # fmt: skip
    kinds = [mark.kind for mark in outcome.record.marks]
    assert kinds.count(MarkKind.STEP) == 2
    first = kinds[: kinds.index(MarkKind.STEP)]
    num_calls = first.count(MarkKind.FORWARD_BEGIN)
    assert num_calls > 1 and first == num_calls * evaluation


def test_a_step_with_a_closure_has_its_phases_and_owners(run_program: RunProgram) -> None:
    device = run_program("closure.py").device
    for step in device["steps"]:
        assert set(step["phases"]) == {"forward", "backward", "optimizer"}
    at_peak = device["at_peak"]
    assert at_peak["input"] == 512 * 1024 * 4
    # Two weights of 1024 x 1024 numbers of 4 bytes, and two biases.
    assert at_peak["parameter"] == 2 * 4 * (1024 * 1024 + 1024)
