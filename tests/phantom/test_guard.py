"""`ullage.guard` with real arithmetic, on the CPU: a step that ran out of memory leaves what the
same step leaves that did not, bit for bit, or is refused; nothing is run twice in silence.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.conftest import RunProgram

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "programs" / "guard"
SOURCE = str(ROOT / "src")
TIMEOUT_S = 1800
LONG_STEPS = 60
CASES = (
    "cnn", "cnn for loop", "gpt2", "gpt2 for loop", "gpt2 accumulated", "vit", "vit accumulated",
    "llama", "llama accumulated", "moe", "cnn fused", "lora", "lora accumulated", "unet",
    "cnn reentrant", "cnn not reentrant", "gpt2 reentrant", "gpt2 not reentrant",
)  # fmt: skip

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def run(thin_python: Path) -> Run:
    """`run("sweep.py", "cnn", "1", "1")`: the document that a program prints."""

    def run_program(*words: str) -> dict[str, Any]:
        done = subprocess.run(
            [str(thin_python), str(PROGRAMS / words[0]), *words[1:]],
            check=False, capture_output=True, text=True, timeout=TIMEOUT_S,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return document

    return run_program


@pytest.fixture(scope="session")
def answers(run: Run) -> dict[str, Any]:
    """What each scenario of the contract answered."""
    return run("contract.py")


def check_sweep(document: dict[str, Any], every: int) -> None:
    """Every error was recovered."""
    num_errors = len(range(0, document["num_allocations"], every))
    assert num_errors > 10
    assert document["results"] == {"equal": num_errors}, document["examples"]


def test_an_error_at_every_allocation_of_a_step_leaves_the_same(run: Run) -> None:
    check_sweep(run("sweep.py", "cnn", "1", "1"), 1)


def test_accumulated_gradients_and_a_fused_optimizer_are_finished(run: Run) -> None:
    check_sweep(run("sweep.py", "llama accumulated", "2", "9"), 9)


def test_a_tensor_in_the_memory_of_a_lost_value_is_not_lost(run: Run) -> None:
    assert run("lost.py") == {"value": True, "view": True, "another": False}


def test_the_loss_scale_and_its_division_are_not_done_twice(run: Run) -> None:
    check_sweep(run("sweep.py", "vit accumulated", "1", "9"), 9)


def test_the_first_step_of_a_fused_sgd_is_finished(run: Run) -> None:
    check_sweep(run("sweep.py", "cnn fused", "1", "5"), 5)


def test_timesteps_that_a_diffusion_step_draws_are_the_same(run: Run) -> None:
    check_sweep(run("sweep.py", "unet", "2", "17"), 17)


def test_checkpoints_of_the_program_itself_go_with_those_of_a_rung(run: Run) -> None:
    check_sweep(run("sweep.py", "cnn reentrant", "2", "9"), 9)


@pytest.mark.nightly
@pytest.mark.parametrize("step", ["1", "2"])
@pytest.mark.parametrize("case", CASES)
def test_an_error_at_every_allocation_of_every_model(run: Run, case: str, step: str) -> None:
    check_sweep(run("sweep.py", case, step, "1"), 1)


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES)
def test_an_error_at_any_operation_is_recovered_or_refused(run: Run, case: str) -> None:
    results = run("sweep.py", case, "1", "3", "all")["results"]
    wrong = [result for result in results if not result.startswith(("equal", "refused: "))]
    assert wrong == []


@pytest.mark.nightly
def test_a_step_of_every_optimizer_is_finished_or_refused_at_each_operation(run: Run) -> None:
    document = run("optimizers.py")
    results = {(name, result) for name, ends in document.items() for result in ends}
    assert [each for each in results if not each[1].startswith(("equal", "refused: a value"))] == []
    assert all(ends["equal"] > 20 for ends in document.values())
    assert all(document[f"SGD {kind}"].keys() == {"equal"} for kind in ("lists", "loop"))


def check_repeated(document: dict[str, Any], num_errors: int) -> None:
    """Every error was recovered, and the training is the same as without."""
    assert document["lost"] == []
    assert document["recoveries"] == document["errors"] == num_errors
    assert document["equal_losses"] == document["steps"]
    assert document["different_state"] == []


def test_an_error_in_every_third_step_leaves_the_same_training(run: Run) -> None:
    check_repeated(run("repeated.py", "gpt2+checkpointing", "24", "3"), 8)


def test_an_error_within_a_compiled_graph_leaves_the_same_training(run: Run) -> None:
    document = run("repeated.py", "cnn+compile", "30", "1")
    check_repeated(document, 30)
    assert document["graphs"] == [1, 1]  # with errors and without


@pytest.mark.nightly
@pytest.mark.parametrize("change", ["autocast", "accumulation", "compile", "ddp"])
@pytest.mark.parametrize("model", ["cnn", "gpt2", "vit", "llama"])
def test_an_error_in_every_step_leaves_the_same_training(run: Run, model: str, change: str) -> None:
    document = run("repeated.py", f"{model}+{change}", "100", "1")
    check_repeated(document, 100)
    with_errors, without = document["graphs"]
    assert with_errors == without


@pytest.mark.nightly
@pytest.mark.parametrize("case", ["cnn", "gpt2", "vit", "llama accumulated"])
def test_500_steps_with_an_error_in_every_third_do_not_drift_or_grow(run: Run, case: str) -> None:
    document = run("repeated.py", case, "500", "3")
    check_repeated(document, 166)
    middle, end = document["resident"]
    assert end - middle < 8 << 20


def test_nothing_is_run_twice_but_forward_and_backward(answers: dict[str, Any]) -> None:
    counters = answers["counters"]
    # The batch is drawn once; the function runs again, and the hooks of the optimizer do not.
    assert counters["first"] == {"draw": 1, "loss": 2, "fn": 2, "before": 1, "after": 1}
    # An error within the optimizer runs neither forward nor backward again.
    assert counters["second"] == {"draw": 2, "loss": 3, "fn": 3, "before": 2, "after": 2}
    assert (counters["calls"], counters["steps"], counters["recoveries"]) == (2, [2], 2)


def test_nothing_is_left_of_a_guard(answers: dict[str, Any]) -> None:
    assert answers["nothing_is_left"] == [1, [], True]
    assert answers["nothing_is_left_after_an_error"] == ["ValueError: no such row", True]


@pytest.mark.parametrize(
    ("scenario", "text"),
    [
        ("a_parameter_is_changed", "'head.weight' and 0 more parameters were changed"),
        ("a_list_grows", "the attribute 'history' of a module was changed"),
        ("an_error_after_the_optimizer", "after the optimizer's step (2.00 GiB asked for)"),
        ("two_steps_of_an_optimizer", "after the optimizer's step"),
        ("a_fused_sgd", "a fused SGD of several dtypes or devices in a group does not show"),
        ("a_batch_is_changed", "argument 0.images of the step was changed in place"),
        ("a_copy_of_the_weights_is_extra", "of a AveragedModel was changed"),
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
    assert answers["flags_are_turned"] == ["nothing", [[True, True]]]


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
    assert "rung 0 (the program as it is), rung 1 (checkpoint (2 modules)), rung 2" in text
    assert (differences, is_same_random_state, num_gradients) == ([], True, 0)


def test_the_guard_goes_back_up_and_waits_longer_after_an_error(answers: dict[str, Any]) -> None:
    assert answers["the_guard_goes_back_up"] == [1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0, 0]


def test_a_second_error_in_the_second_try_goes_down_another_rung(answers: dict[str, Any]) -> None:
    assert answers["two_errors_in_a_step"] == ["equal"] * 9


def test_every_technique_of_a_rung_gives_the_same(answers: dict[str, Any]) -> None:
    assert answers["other_rungs"] == {"selective_checkpoint": [], "offload_activations": []}


def test_an_average_of_the_weights_is_finished(answers: dict[str, Any]) -> None:
    ends = answers["an_average_follows_the_optimizer"]
    assert ends.keys() == {"equal"}
    assert ends["equal"] > 10


def test_a_second_error_in_a_fused_sgd_is_finished_or_refused(answers: dict[str, Any]) -> None:
    ends = answers["two_errors_in_a_fused_sgd"]
    assert ends.keys() <= {"equal", "there is no memory to look at how far the optimizer has got"}
    assert ends["equal"] > 10


def test_without_rungs_a_step_is_run_once_more_as_it_is(answers: dict[str, Any]) -> None:
    num_recoveries, rung, text = answers["without_rungs"]
    assert (num_recoveries, rung) == (1, 0)
    assert "ran out of memory on rung 0 (the program as it is); no rung is left" in text


def test_libraries_say_in_other_words_that_there_is_no_memory(answers: dict[str, Any]) -> None:
    ends = answers["other_words"]
    assert ends["driver"] == ends["cuBLAS"] == [1, "nothing"]
    # Without an error of the allocator the convolution is one that cuDNN does not have.
    assert ends["no engine"][0] == 0 and "unable to find an engine" in ends["no engine"][1]
    assert ends["host"][0] == 0 and "DefaultCPUAllocator" in ends["host"][1]


def test_a_compiled_model_is_run_again_as_it_is_and_compiled_once(answers: dict[str, Any]) -> None:
    ends = answers["a_compiled_model"]
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
    assert refusals["calm_steps"].startswith("SpecError: calm_steps=0 is no number of steps")
    assert refusals["blocks"].startswith("PlanError: Linear has no repeated blocks")
    assert refusals["closed"].startswith("SpecError: the guard is closed")
    assert refusals["within"].startswith("SpecError: a step of the guard is within another")


@pytest.fixture
def long_batches(run_program: RunProgram) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the allocator had of a training of which every third batch is long: with memory for it,
    and guarded with memory for it only where blocks are checkpointed.
    """
    name, steps = "guard/long_batch.py", str(LONG_STEPS)
    plain = run_program(name, SOURCE, "plain", steps, options=("--memory", "8GiB"), timeout_s=600)
    guarded = run_program(
        name, SOURCE, "guarded", steps, options=("--memory", "3.2GiB"), timeout_s=600
    )
    return plain.printed, guarded.printed


@pytest.mark.phantom
def test_on_the_phantom_the_allocator_is_as_without_errors(
    long_batches: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    plain, guarded = long_batches
    assert plain["peak"] > 3 << 30
    assert guarded["peak"] < 2.3 * (1 << 30)
    assert guarded["recoveries"] == LONG_STEPS // 3
    expected = plain["rows"][-1]
    for row in guarded["rows"]:
        # No growth: the same bytes and the same number of tensors after every step.
        assert (row["allocated"], row["tensors"]) == (expected["allocated"], expected["tensors"])
    # What is reserved does not grow either, and is given back at the end.
    assert len({row["reserved"] for row in guarded["rows"][2:]}) == 1
    assert guarded["at_end"] == plain["at_end"]


@pytest.mark.phantom
def test_on_the_phantom_a_recovery_loses_at_most_two_steps(run_program: RunProgram) -> None:
    words, clock = ("guard/long_batch.py", SOURCE), ("--clock", "virtual")
    plain = run_program(*words, "plain", "6", options=("--memory", "8GiB", *clock)).printed
    guarded = run_program(*words, "guarded", "6", options=("--memory", "3.2GiB", *clock)).printed
    assert guarded["recoveries"] == 2
    for ours, theirs in zip(guarded["rows"][2::3], plain["rows"][2::3], strict=True):
        lost = ours["seconds"] - theirs["seconds"]
        assert 0 < lost < 2 * theirs["seconds"]


@pytest.mark.phantom
@pytest.mark.parametrize("words", [(), ("later",)])
def test_on_the_phantom_each_limit_of_memory_ends_in_the_same_state(
    run_program: RunProgram, words: tuple[str, ...]
) -> None:
    """Limits from half of the peak to the peak: the first failure is another one each time."""
    document = run_program("guard/limits.py", SOURCE, "7", *words, timeout_s=600).printed
    plain, rows = document["plain"], document["rows"]
    recovered = [row for row in rows if row["recoveries"]]
    assert len(recovered) > 2
    for row in recovered:
        assert row["requested"] == plain["requested"]
        assert row["tensors"] == plain["tensors"]
        # Gradients and states that the step makes get cached blocks of another plan's step, and
        # are rounded up otherwise. A later step makes nothing that stays.
        tolerance = 0 if words else 0.01 * plain["allocated"]
        assert abs(row["allocated"] - plain["allocated"]) <= tolerance
    # Where no rung fits, the program gets its error: nothing else ends a step.
    assert {row["end"] for row in rows if not row["recoveries"]} <= {"no rung"}


@pytest.mark.phantom
@pytest.mark.nightly
def test_on_the_phantom_500_steps_do_not_grow(run_program: RunProgram) -> None:
    rows = run_program(
        "guard/long_batch.py", SOURCE, "guarded", "500", options=("--memory", "3.2GiB"),
        timeout_s=3000,
    ).printed["rows"]  # fmt: skip
    assert len({(row["allocated"], row["tensors"]) for row in rows}) == 1
    assert len({row["reserved"] for row in rows[2:]}) == 1


@pytest.mark.phantom
def test_on_the_phantom_a_cuda_graph_is_refused(run_program: RunProgram) -> None:
    document = run_program("guard/graph.py", SOURCE).printed
    assert document["answer"].startswith("GuardError: the program has a CUDA graph, whose replays")
    assert document["without"] == 1


@pytest.mark.phantom
def test_on_the_phantom_gradients_of_a_micro_batch_stay_where_they_are(
    run_program: RunProgram,
) -> None:
    """Backward runs on a thread of the GPU, and the sums of the second try there too."""
    words = ("guard/long_batch.py", SOURCE)
    plain = run_program(*words, "plain", "6", "accumulated", options=("--memory", "8GiB")).printed
    guarded = run_program(
        *words, "guarded", "6", "accumulated", options=("--memory", "3.2GiB")
    ).printed
    assert guarded["recoveries"] == 2
    ours, theirs = ([row["allocated"] for row in each["rows"]] for each in (guarded, plain))
    assert ours == theirs
    assert guarded["generator"] == plain["generator"]


@pytest.mark.phantom
def test_on_the_phantom_the_users_lines_say_what_happened(
    long_batches: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    plain, guarded = long_batches
    first, *_, last = guarded["said"]
    assert first.startswith("ullage: guard: 3 rungs: 0. the program as it is; 1. checkpoint (3")
    assert first.endswith("none of them is proved to fit; `ullage fit` makes plans that are")
    assert last == f"ullage: guard: recoveries: {LONG_STEPS // 3} in {LONG_STEPS} steps"
    lines = [line for line in guarded["said"] if "out of memory" in line]
    assert len(lines) == LONG_STEPS // 3
    assert all(
        line.endswith("ran the step again on rung 1 (checkpoint (3 modules))") for line in lines
    )
    # The GPU's generator has gone as far as in the run without errors.
    assert guarded["generator"] == plain["generator"]


def test_what_is_read_at_once_is_what_python_reads_of_each(run: Run) -> None:
    answers = run("reads.py")
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
