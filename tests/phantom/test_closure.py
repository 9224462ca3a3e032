"""Optimizers that call forward and backward themselves, or read values: owners, and states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ullage.log.model import MarkKind

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


def test_every_optimizer_goes_on_from_a_checkpoint_on_the_gpu_as_on_the_cpu(
    run_program: RunProgram,
) -> None:
    outcome = run_program("optimizers.py")
    assert outcome.exit_code == 0, outcome.stderr


def test_a_search_that_reads_vectors_keeps_as_many_as_it_may(run_program: RunProgram) -> None:
    outcome = run_program("optimizers.py", "search")
    assert outcome.exit_code == 0, outcome.stderr
    # Without and with a line search, after 2 and 4 steps of 6 iterations: the pairs that are kept,
    # of 16, and the iterations. None is kept of the first iteration of a step.
    assert outcome.printed == [[10, 12], [16, 24]] * 2


def test_a_step_with_a_closure_has_its_phases_and_owners(run_program: RunProgram) -> None:
    device = run_program("closure.py").device
    for step in device["steps"]:
        assert set(step["phases"]) == {"forward", "backward", "optimizer"}
    at_peak = device["at_peak"]
    assert at_peak["input"] == 512 * 1024 * 4
    # Two weights of 1024 x 1024 numbers of 4 bytes, and two biases.
    assert at_peak["parameter"] == 2 * 4 * (1024 * 1024 + 1024)
