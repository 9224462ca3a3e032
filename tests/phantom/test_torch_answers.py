"""Answers that PyTorch's own tests ask for, as a driver gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]
INVALID, REGISTERED, NOT_REGISTERED = 1, 712, 713


def test_pinned_memory_is_given_back_by_its_own_call_alone(run_program: RunProgram) -> None:
    outcome = run_program("torch_answers.py", "pinned_pairs")
    assert outcome.printed == [NOT_REGISTERED, 0, REGISTERED, INVALID, 0, NOT_REGISTERED]


def test_a_device_has_a_context_once_something_uses_it(run_program: RunProgram) -> None:
    seen = run_program("torch_answers.py", "contexts", options=("--gpus", "2")).printed
    none, used = [False, False], [True, True]
    assert seen == [[none, none], [none, none], [none, used], [used, used]]


@pytest.mark.parametrize("options", [(), ("--clock", "virtual")])
def test_a_graph_records_its_events(run_program: RunProgram, options: tuple[str, ...]) -> None:
    outcome = run_program("torch_answers.py", "graph_events", options=options)
    if "unexpected keyword argument 'external'" in outcome.stderr:
        pytest.skip("this torch has no external events")
    assert outcome.printed == [True, True, [1000, 1000]]


def test_a_daemon_of_torchs_is_no_process_left_behind(run_program: RunProgram) -> None:
    outcome = run_program("torch_answers.py", "shared_files")
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.printed == [10]
    assert "running" not in outcome.stderr
    assert "no version information" not in outcome.stderr
