"""What `ullage.guard` restores, counts, refuses and says, on the processor.

That a step with an error ends as without is in test_error_at_allocations.py, and what the allocator
then has in test_guard_memory.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.phantom.alone import printed_by


@pytest.fixture(scope="session")
def answers(thin_python: Path) -> dict[str, Any]:
    """What each scenario of the contract answered."""
    document: dict[str, Any] = printed_by(thin_python, "guard/contract.py")
    return document


def test_a_tensor_in_the_memory_of_a_lost_value_is_not_lost(thin_python: Path) -> None:
    expected = {"value": True, "view": True, "another": False}
    assert printed_by(thin_python, "guard/lost.py") == expected


def test_what_stands_for_a_tensor_that_is_gone_refuses_every_use(thin_python: Path) -> None:
    ends = printed_by(thin_python, "guard/stand_in.py")
    # Torch itself refuses these, as the stand-in is on the device meta: nobody is asked before.
    by_torch = {"data": "RuntimeError", "a gradient": "RuntimeError", "new": "TypeError",
                "torch.FloatTensor": "TypeError"}  # fmt: skip
    assert ends == dict.fromkeys(ends, "GuardError") | by_torch


def test_a_loss_that_a_module_keeps_may_be_replaced_unread(thin_python: Path) -> None:
    # Its graph is gone when the second try, with checkpoints, asks what the module holds.
    assert printed_by(thin_python, "guard/sweep.py", "moe", "2", "90")["results"] == {"equal": 9}


def test_nothing_is_run_twice_but_forward_and_backward(answers: dict[str, Any]) -> None:
    counters = answers["counters"]
    # The batch is drawn once; the function runs again, and the hooks of the optimizer do not.
    assert counters["first"] == {"draw": 1, "loss": 2, "fn": 2, "before": 1, "after": 1}
    # An error within the optimizer runs neither forward nor backward again.
    assert counters["second"] == {"draw": 2, "loss": 3, "fn": 3, "before": 2, "after": 2}
    assert (counters["calls"], counters["steps"], counters["recoveries"]) == (2, [2], 2)


def test_a_decorated_function_is_a_step(answers: dict[str, Any]) -> None:
    doc, loss, num_losses, is_open, is_closed, last = answers["a_decorated_step"]
    assert (doc, loss, num_losses, is_open, is_closed) == ("A step.", 0.0, 2, True, True)
    assert last == "ullage: guard: recoveries: 1 in 1 steps"


def test_nothing_is_left_of_a_guard(answers: dict[str, Any]) -> None:
    assert answers["nothing_is_left"] == [1, [], True]
    assert answers["nothing_is_left_after_an_error"] == ["ValueError: no such row", True]


@pytest.mark.parametrize(
    ("scenario", "text"),
    [
        ("a_parameter_is_changed", "head.weight (a parameter or a state of an optimizer, of which"),
        ("an_error_after_the_optimizer", "after the optimizer's step (2.00 GiB asked for)"),
        ("two_steps_of_an_optimizer", "after the optimizer's step"),
        ("a_fused_sgd", "a fused SGD of several dtypes or devices in a group does not show"),
    ],
)
def test_what_cannot_be_undone_is_refused(
    answers: dict[str, Any], scenario: str, text: str
) -> None:
    assert answers[scenario].startswith("GuardError: ")
    assert text in answers[scenario]


def test_an_optimizer_outside_torch_is_named_and_refused(answers: dict[str, Any]) -> None:
    text, is_named = answers["an_optimizer_of_ones_own"]
    assert text.startswith("GuardError: Own is not one of torch.optim")
    assert is_named


def test_a_gradient_that_was_used_and_freed_is_missed(answers: dict[str, Any]) -> None:
    text, has_stand_in = answers["a_gradient_is_read_and_freed"]
    assert text.startswith("GuardError: the step uses a gradient that it has freed")
    assert not has_stand_in


def test_the_state_between_modules_is_restored(answers: dict[str, Any]) -> None:
    assert answers["an_attribute_is_new"] == ["nothing", [[False, False]]]
    assert answers["gradients_are_zeroed_in_place"] == [[], []]
    assert answers["a_scheduler_is_extra"] == 1
    assert answers["a_list_grows"] == ["nothing", []]
    assert answers["a_copy_of_the_weights_is_extra"] == "nothing"
    assert answers["flags_are_turned"] == ["nothing", [[True, True]]]


def test_a_batch_is_as_it_was_or_its_large_tensor_is_missed(answers: dict[str, Any]) -> None:
    text, is_once, refusal = answers["a_batch_is_changed"]
    assert (text, is_once) == ("nothing", True)
    assert refusal.startswith(
        "GuardError: the step had changed what cannot be put back: argument 0"
    )
    assert "argument 0.table (4,194,304 bytes without a copy)" in refusal


def test_a_large_buffer_is_restored_or_missed(answers: dict[str, Any]) -> None:
    # Before the first step it is copied; later only once a step has changed it.
    assert answers["a_large_buffer"] == [
        ["nothing", 1.0], ["GuardError", 1.0], ["nothing", 2.0], ["nothing", 3.0],
    ]  # fmt: skip


def test_a_plan_for_another_program_is_refused_at_the_start(answers: dict[str, Any]) -> None:
    assert answers["a_plan_for_another_program"].startswith("PlanError: the plan was made for anot")


def test_without_a_rung_the_error_names_them_and_the_state_is_as_before(
    answers: dict[str, Any],
) -> None:
    text, differences, is_same_random_state, num_gradients = answers["no_rung_is_left"]
    assert text.startswith("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert "rung 0 (the unchanged program), rung 1 (checkpoint (2 modules)), rung 2" in text
    assert (differences, is_same_random_state, num_gradients) == ([], True, 0)


def test_the_guard_goes_back_up_and_waits_longer_after_an_error(answers: dict[str, Any]) -> None:
    assert answers["the_guard_goes_back_up"] == [1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0, 0]


def test_every_technique_of_a_rung_gives_the_same(answers: dict[str, Any]) -> None:
    assert answers["other_rungs"] == {"selective_checkpoint": [], "offload_activations": []}


def test_without_rungs_a_step_is_run_once_more_as_it_is(answers: dict[str, Any]) -> None:
    num_recoveries, rung, text = answers["without_rungs"]
    assert (num_recoveries, rung) == (1, 0)
    assert "ran out of memory on rung 0 (the unchanged program); no rung is left" in text


def test_a_function_that_has_not_run_when_its_call_ends_is_refused(answers: dict[str, Any]) -> None:
    for text in answers["functions_that_have_not_run"]:
        assert "is a generator or async function, which has not run when its call ends" in text


def test_the_error_that_began_a_recovery_is_the_cause_of_what_ends_it(
    answers: dict[str, Any],
) -> None:
    first = "CUDA out of memory. Tried to allocate 2.00 GiB."
    assert answers["what_ended_a_recovery"] == [["ValueError", first], ["GuardError", first]]


def test_libraries_say_in_other_words_that_there_is_no_memory(answers: dict[str, Any]) -> None:
    ends = answers["other_words"]
    assert ends["driver"] == ends["cuBLAS"] == [1, "nothing"]
    # Without an error of the allocator the convolution is one that cuDNN does not have.
    assert ends["no engine"][0] == 0 and "unable to find an engine" in ends["no engine"][1]
    assert ends["host"][0] == 0 and "DefaultCPUAllocator" in ends["host"][1]


def test_a_compiled_model_is_run_again_as_it_is_and_compiled_once(thin_python: Path) -> None:
    ends = printed_by(thin_python, "guard/compiled_model.py")
    # Differences, recoveries, and the graphs that were compiled without and with errors.
    assert ends["model"] == [[], 3, [1, 1]]
    assert ends["blocks"][:2] == [[], 3]
    plain, guarded = ends["blocks"][2]
    assert plain == guarded
    assert "with gradients of earlier micro-batches" in ends["accumulated"]


def test_what_is_no_guard_is_refused(answers: dict[str, Any]) -> None:
    refusals = answers["what_is_no_guard"]
    assert "cannot have 'free_gradients'" in refusals["technique"]
    assert refusals["compiled"].startswith("SpecError: the model is compiled")
    assert refusals["calm_steps"].startswith("SpecError: calm_steps=0 is not a number of steps")
    assert refusals["blocks"].startswith("PlanError: Linear has no repeated blocks")
    assert refusals["closed"].startswith("SpecError: the guard is closed")
    assert refusals["within"].startswith("SpecError: a step of the guard is within another")


def test_what_is_read_at_once_is_what_python_reads_of_each(thin_python: Path) -> None:
    answers = printed_by(thin_python, "guard/reads.py")
    assert answers["is_native"]
    of_each, at_once = answers["read_counters"]
    assert at_once == of_each == [1, 2, 4, 4, 5]
    assert answers["read_flags"] == [False, True, False, True]
    assert answers["read_inference_tensor"] == [False, [False]]
    assert answers["let_memory_go"]
    assert answers["rewind_generators"]
    hidden, refused, has_gradients = answers["exchange"]
    assert hidden.startswith("a parameter or state was exchanged for another tensor in place")
    assert "weakref" in refused
    assert has_gradients == "False"
