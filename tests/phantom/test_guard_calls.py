"""Guards of scripts that are not changed: `ullage exec --guard`, `ullage.guard_model`, callbacks.
What a script leaves after errors is what it leaves without, bit for bit, or is refused.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.conftest import MAIN, RunProgram

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "programs" / "guard"
SOURCE = str(ROOT / "src")
TIMEOUT_S = 1800
LONG_STEPS = 12
CASES = ("cnn", "gpt2 accumulated", "vit", "vit accumulated", "llama accumulated", "moe")
FRAMEWORKS = ("transformers", "lightning", "accelerate")

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def run(thin_python: Path) -> Run:
    """`run("exec", "--guard")("unmodified.py", "plain", "40")`: the document that a program prints,
    under a verb of ullage or by itself.
    """

    def run_program(*words: str, under: tuple[str, ...] = ()) -> dict[str, Any]:
        program = [str(PROGRAMS / words[0]), *words[1:]]
        verb = [sys.executable, "-c", MAIN, *under, "--python", str(thin_python), "--"]
        done = subprocess.run(
            [*(verb if under else [str(thin_python)]), *program],
            check=False, capture_output=True, text=True, timeout=TIMEOUT_S,
            env={**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return document | {"stderr": done.stderr}

    return run_program


@pytest.fixture(scope="session")
def answers(run: Run) -> dict[str, Any]:
    """What each scenario answered."""
    return run("calls.py")


def check_sweep(document: dict[str, Any], least: int) -> None:
    """Every error within what is guarded was recovered, and every other was the script's own."""
    results = document["results"]
    assert results["guarded"].keys() == {"equal"}, results
    assert results["guarded"]["equal"] >= least
    assert results["script"].keys() <= {"equal", "out of memory"}, results


def test_a_script_under_exec_leaves_the_same_after_errors(run: Run) -> None:
    document = run("unmodified.py", "plain", "47", under=("exec", "--guard"))
    check_sweep(document, 10)
    lines = [line for line in document["stderr"].splitlines() if line.startswith("ullage: guard")]
    assert "2 rungs: 0. the program as it is; 1. checkpoint (2 modules)" in lines[0]
    assert "not what the script does in between" in lines[1]
    count = document["results"]["guarded"]["equal"] + document["results"]["script"].get("equal", 0)
    assert sum("out of memory" in line for line in lines) == count
    assert lines[-1].startswith(f"ullage: guard: recoveries: {count} in ")


def test_a_training_with_a_callback_leaves_the_same_after_errors(run: Run) -> None:
    check_sweep(run("unmodified.py", "lightning", "47", "callbacks"), 5)


@pytest.mark.nightly
@pytest.mark.parametrize("loop", ["plain", *FRAMEWORKS])
def test_an_error_at_every_allocation_of_a_script(run: Run, loop: str) -> None:
    check_sweep(run("unmodified.py", loop, "1", under=("exec", "--guard")), 200)


@pytest.mark.nightly
@pytest.mark.parametrize("loop", FRAMEWORKS)
def test_an_error_at_every_allocation_with_a_callback(run: Run, loop: str) -> None:
    check_sweep(run("unmodified.py", loop, "1", "callbacks"), 200)


def check_case(document: dict[str, Any]) -> None:
    """Every error was recovered, but for those in the loss, clipping and the loss scale."""
    results = document["results"]
    assert results.keys() <= {"equal", "the script's own"}, document["examples"]
    assert results["equal"] > 4 * results.get("the script's own", 0)


def test_the_calls_of_a_model_under_autocast_with_a_loss_scale_are_recovered(run: Run) -> None:
    check_case(run("sweep.py", "vit accumulated", "1", "23", "calls"))


@pytest.mark.nightly
@pytest.mark.parametrize("step", ["1", "2"])
@pytest.mark.parametrize("case", [*CASES])
def test_an_error_at_every_allocation_of_the_calls_of_every_model(
    run: Run, case: str, step: str
) -> None:
    check_case(run("sweep.py", case, step, "1", "calls"))


@pytest.mark.parametrize(
    "scenario",
    [
        "two_calls_of_one_backward", "a_graph_that_is_kept", "outputs_of_all_kinds",
        "an_evaluation_between", "errors_of_libraries",
    ],
)  # fmt: skip
def test_a_program_of_another_kind_leaves_the_same(answers: dict[str, Any], scenario: str) -> None:
    answer = answers[scenario]
    assert answer["calm"] == []
    assert "wrong" not in answer, answer["wrong"]
    assert answer["equal"] > 2 * answer["refused"]
    # Neither the loader nor the loss runs more often than without a guard.
    draws, plain_draws, losses, plain_losses = answer["draws"]
    assert (draws, losses) == (plain_draws, plain_losses)


def test_an_error_of_another_kind_is_the_scripts(answers: dict[str, Any]) -> None:
    assert answers["errors_of_libraries"]["mistakes"] == 0


def test_a_loss_of_torch_is_run_again_once_without_the_graph(answers: dict[str, Any]) -> None:
    num_errors, num_equal, num_said = answers["a_loss_of_torch"]
    assert num_errors >= 4
    assert num_equal == num_said == num_errors


def test_a_guarded_loss_is_compiled_and_scripted_as_it_is(answers: dict[str, Any]) -> None:
    values, num_graphs, _ = answers["a_loss_that_is_compiled"]
    assert len(set(values)) == 1
    assert num_graphs == 1


def test_what_goes_past_the_guard_gives_the_same_and_is_said(answers: dict[str, Any]) -> None:
    assert answers["gradients_of_some_parameters"]["calm"] == []
    assert answers["a_generator_and_its_critic"] == []
    for scenario in ("higher_orders", "parameters_in_the_loss"):
        assert answers[scenario]["largest"] < 1e-5
        assert answers[scenario]["said"].count("only forward is run again") == 1


def test_what_is_not_recovered_is_the_scripts_error_with_the_reason(
    answers: dict[str, Any],
) -> None:
    refusals = answers["what_is_refused"]
    start = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\nullage: guard: not "
    for name, reason in (
        ("input", "a tensor that the model was called with was changed since"),
        ("parameter", "'stem.bias' and 0 more parameters were changed"),
        ("loss", "the script's own part of backward, such as the loss, is not run again"),
        ("no rung", "it ran out of memory on rung 0 (the program as it is), rung 1 (checkpoint"),
    ):
        assert refusals[name].startswith(f"{start}recovered: {reason}"), refusals[name]
    assert refusals["shared"].startswith("GuardError: the script changes an output of the model")


def test_what_cannot_be_guarded_is_refused(answers: dict[str, Any]) -> None:
    refusals = answers["what_is_no_model"]
    assert refusals["compiled"].startswith("SpecError: Sequential cannot be guarded: it is compil")
    assert refusals["replicated"].endswith("DataParallel is not supported")
    assert refusals["calm_steps"].startswith("SpecError: calm_steps=0 is no number of steps")
    assert refusals["second"].startswith("SpecError: a guard of the calls of models is open")


def test_what_cannot_go_on_under_ddp_is_the_scripts_error(answers: dict[str, Any]) -> None:
    refusals = answers["what_is_refused_under_ddp"]
    reason = "not recovered: DistributedDataParallel itself ran out of memory"
    assert reason in refusals["hook"][0]
    error, said = refusals["collectives"]
    assert error == "nothing"
    assert said.count("has collectives of its own, as SyncBatchNorm") == 1
    error, _ = refusals["collectives and error"]
    assert error.endswith("not recovered: the model's call has collectives of its own")
    assert "static_graph=True counts what each backward does" in refusals["static"]
    assert refusals["within"].endswith("DistributedDataParallel is not supported within it")


def test_nothing_is_left_of_a_guard_of_calls(answers: dict[str, Any]) -> None:
    assert answers["nothing_is_left"] == [1, [], True]


def test_a_guard_of_calls_goes_back_up(answers: dict[str, Any]) -> None:
    assert answers["the_guard_goes_back_up"] == [0, 1, 1, 1, 0, 0, 0, 0]


def test_ranks_go_to_one_rung_and_back_up_when_all_are_calm(answers: dict[str, Any]) -> None:
    rungs, is_lost, num_said = answers["the_rung_of_all_ranks"]
    assert [[*each[:2]] for each in rungs] == [[1, 1], [2, 2], [2, 2], [1, 1], [3, 3], [2, 2]]
    assert rungs[0][2:] == [0, 0]
    assert rungs[1][2:] == [1, 1]
    assert (is_lost, num_said) == (True, 1)


def test_a_decorated_function_is_a_step(answers: dict[str, Any]) -> None:
    doc, loss, num_losses, is_open, is_closed, last = answers["a_decorated_step"]
    assert (doc, loss, num_losses, is_open, is_closed) == ("A step.", 0.0, 1, True, True)
    assert last == "ullage: guard: recoveries: 1 in 1 steps"


@pytest.mark.phantom
def test_on_the_phantom_a_guarded_call_leaves_the_allocator_as_without_errors(
    run_program: RunProgram,
) -> None:
    words = ("guard/long_batch.py", SOURCE)
    steps = str(LONG_STEPS)
    plain = run_program(*words, "plain", steps, options=("--memory", "8GiB"), timeout_s=600).printed
    guarded = run_program(
        *words, "calls", steps, options=("--memory", "3.2GiB"), timeout_s=600
    ).printed
    assert guarded["recoveries"] == LONG_STEPS // 3
    assert guarded["peak"] < 2.3 * (1 << 30)
    expected = plain["rows"][-1]
    for row in guarded["rows"]:
        assert (row["allocated"], row["tensors"]) == (expected["allocated"], expected["tensors"])
    assert len({row["reserved"] for row in guarded["rows"][2:]}) == 1
    assert guarded["at_end"] == plain["at_end"]
    assert guarded["generator"] == plain["generator"]


@pytest.mark.phantom
def test_on_the_phantom_a_loss_gets_the_memory_of_the_models_graph(run_program: RunProgram) -> None:
    done = run_program(
        "guard/long_loss.py", SOURCE, options=("--memory", "8GiB"),
        env=(("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),),
    ).printed  # fmt: skip
    lines = [line for line in done["said"] if "out of memory in" in line]
    assert "out of memory in cross_entropy" in lines[0]
    assert "out of memory in backward" in lines[1]  # which runs the call again, on the next rung
    assert done["recoveries"] == len(lines)
    # Without the guard, and with it after the error.
    assert len(set(done["after"][1:])) == 1
    assert done["limit"] < done["most"][1]


@pytest.mark.phantom
def test_on_the_phantom_sums_of_a_micro_batch_are_not_done_again(run_program: RunProgram) -> None:
    """Backward runs on a thread of the GPU, and the sums of the second try there too."""
    words = ("guard/long_batch.py", SOURCE)
    plain = run_program(*words, "plain", "6", "accumulated", options=("--memory", "8GiB")).printed
    guarded = run_program(
        *words, "calls", "6", "accumulated", options=("--memory", "3.2GiB")
    ).printed
    assert guarded["recoveries"] == 2
    ours, theirs = ([row["allocated"] for row in each["rows"]] for each in (guarded, plain))
    assert ours == theirs
    assert guarded["generator"] == plain["generator"]


@pytest.mark.phantom
def test_on_the_phantom_the_peak_of_calm_steps_is_the_scripts(run_program: RunProgram) -> None:
    words, options = ("guard/long_batch.py", SOURCE), ("--memory", "8GiB")
    plain, guarded = (
        run_program(*words, how, "6", "accumulated", options=options).printed
        for how in ("plain", "calls")
    )
    assert guarded["recoveries"] == 0
    assert guarded["peak"] <= 1.001 * plain["peak"]
