"""Guards of scripts that are not changed: `ullage exec --guard`, `ullage.guard_model`, callbacks.

That a script leaves after errors what it leaves without is in test_error_at_allocations.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.alone import printed_by, run_alone

LOSSES = ("a_loss_of_torch", "a_loss_that_is_compiled")
SCENARIOS = (
    "higher_orders", "parameters_in_the_loss", "a_generator_and_its_critic", "what_is_refused",
    "what_is_no_model", "nothing_is_left", "the_guard_goes_back_up", "the_rung_of_all_ranks",
    "what_is_refused_under_ddp", "a_decorated_step",
)  # fmt: skip


@pytest.fixture(scope="session")
def answers(thin_python: Path) -> dict[str, Any]:
    """What each scenario answered."""
    document: dict[str, Any] = printed_by(thin_python, "guard/calls.py", *SCENARIOS)
    return document


@pytest.fixture(scope="session")
def losses(thin_python: Path) -> dict[str, Any]:
    """What those of a loss outside the model answered."""
    document: dict[str, Any] = printed_by(thin_python, "guard/calls.py", *LOSSES)
    return document


def test_a_script_under_exec_is_told_what_was_recovered(thin_python: Path) -> None:
    words = ("guard/unmodified.py", "plain", "0:3")
    done = run_alone(thin_python, *words, verb=("exec", "--guard"))
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])["results"]
    lines = [line for line in done.stderr.splitlines() if line.startswith("ullage: guard")]
    assert "2 rungs: 0. the program as it is; 1. checkpoint (2 modules)" in lines[0]
    assert lines[0].endswith("not what the script does between")
    count = results["guarded"]["equal"] + results["script"].get("equal", 0)
    assert count
    assert sum("out of memory" in line for line in lines) == count
    assert lines[-1].startswith(f"ullage: guard: recoveries: {count} in ")


def test_a_loss_of_torch_is_run_again_once_without_the_graph(losses: dict[str, Any]) -> None:
    num_errors, num_equal, num_said = losses["a_loss_of_torch"]
    assert num_errors >= 4
    assert num_equal == num_said == num_errors


def test_a_guarded_loss_is_compiled_and_scripted_as_it_is(losses: dict[str, Any]) -> None:
    values, num_graphs, _ = losses["a_loss_that_is_compiled"]
    assert len(set(values)) == 1
    assert num_graphs == 1


def test_what_goes_past_the_guard_gives_the_same_and_is_said(answers: dict[str, Any]) -> None:
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
