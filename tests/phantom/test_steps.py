"""`--steps` ends training programs after training steps, whatever they evaluate before, and says
after what it ended a run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]

LOOPS, INFERENCE = "steps/loops.py", "steps/inference.py"
OPTIONS = ("--steps", "3")
TRAINING = {"after": "stopped by --steps 3 after 3 training steps", "num_steps": 3,
            "kind": "training"}  # fmt: skip


def check_trained(run_program: RunProgram, order: str) -> None:
    outcome = run_program(LOOPS, order, options=OPTIONS)
    assert outcome.document["stopped"] == TRAINING, outcome.stderr
    assert "ran to its end" not in outcome.stderr
    assert [step["index"] for step in outcome.device["steps"]] == [0, 1, 2]
    whole = run_program(LOOPS, order)
    assert whole.document["stopped"] is None and "ran to its end" in whole.stderr
    for field in ("peak_allocated_bytes", "peak_reserved_bytes"):
        assert outcome.device[field] == whole.device[field]


@pytest.mark.parametrize("order", ["evaluation_first", "late_optimizer"])
def test_an_evaluation_before_the_training_does_not_end_it(
    run_program: RunProgram, order: str
) -> None:
    check_trained(run_program, order)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "order", ["validation_between", "frozen_encoder", "two_optimizers", "accumulation", "closures"]
)
def test_steps_are_those_of_the_optimizer(run_program: RunProgram, order: str) -> None:
    check_trained(run_program, order)


def test_a_training_program_that_evaluates_first_is_not_said_to_fit(
    run_program: RunProgram,
) -> None:
    options = (*OPTIONS, "--memory", "1100MiB")  # enough for the evaluation
    outcome = run_program(LOOPS, "evaluation_first", options=options)
    assert (outcome.exit_code, outcome.document["verdict"]) == (1, "out_of_memory")


@pytest.mark.nightly
def test_without_an_optimizer_a_step_is_a_backward(run_program: RunProgram) -> None:
    outcome = run_program(LOOPS, "by_hand", options=OPTIONS)
    assert outcome.document["stopped"] == TRAINING
    assert len(run_program(LOOPS, "by_hand").device["steps"]) == 4


def test_inference_is_ended_after_its_forwards_and_says_so(run_program: RunProgram) -> None:
    outcome = run_program(INFERENCE, options=OPTIONS)
    assert outcome.exit_code == 0 and "ran to its end" not in outcome.stderr
    stopped = outcome.document["stopped"]
    assert (stopped["kind"], stopped["num_steps"]) == ("inference", 3)
    assert "after 3 forwards without gradients; no training step seen" in stopped["after"]


def test_inference_in_training_mode_is_not_cut_short_and_is_told_why(
    run_program: RunProgram,
) -> None:
    outcome = run_program(INFERENCE, "careless", options=OPTIONS)
    assert outcome.document["stopped"] is None and "ran to its end" in outcome.stderr
    assert any("call .eval()" in warning for warning in outcome.document["warnings"])


def test_validations_between_steps_are_evaluations(run_program: RunProgram) -> None:
    device = run_program(LOOPS, "validation_between").device
    assert [step["is_complete"] for step in device["steps"]] == [True] * 4
    evaluations = [(one["before_step"], one["num_forwards"]) for one in device["evaluations"]]
    assert evaluations == [(2, 3), (4, 3)]


def test_a_step_that_raises_is_over(run_program: RunProgram) -> None:
    outcome = run_program("steps/raising.py")
    assert json.loads(outcome.stderr.splitlines()[0]) == [4.0, 4.0]
    assert len(outcome.device["steps"]) == 3
    assert outcome.device["at_peak"]["unattributed"] >= 1 << 30


@pytest.mark.parametrize(("what", "gpu"), [("loop", "rtx-4090"), ("hook", "rtx-3060")])
def test_equal_growth_is_in_the_verdict_with_its_finding(
    run_program: RunProgram, what: str, gpu: str
) -> None:
    """32 MiB a pass, of which the peaks of the hook's differ by less than 0.5 %."""
    outcome = run_program("steps/leaks.py", what, gpu=gpu)
    document, device = outcome.document, outcome.device
    assert (document["verdict"], document["warnings"]) == ("fits", [])
    assert device["growth_bytes_per_step"] == 32 * 2**20
    left = (device["headroom_bytes"] + device["headroom_high_bytes"]) / 2
    assert device["full_after_steps"] == pytest.approx(left / 2**25, rel=0.03)
    (finding,) = document["processes"][0]["findings"]
    assert finding["code"] == "UL112" and "leaks.py" in str(finding["evidence"])


def test_the_parts_of_a_model_that_are_called_in_turn_are_settled(run_program: RunProgram) -> None:
    outcome = run_program("steps/leaks.py", "decode")
    assert outcome.document["warnings"] == []
    device = outcome.device
    assert len(device["steps"]) == 20
    assert (device["growth_bytes_per_step"], device["full_after_steps"]) == (0, None)
