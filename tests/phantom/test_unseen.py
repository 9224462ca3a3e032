"""What ullage does inside a program is not seen by it, and raises nothing in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.alone import printed_by
from tests.phantom.bare_gpu import bare_environment, recorder
from tests.phantom.conftest import execute, find_program

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]
WITHOUT_VALUES = ("[run] values = false",)


@pytest.fixture(scope="module")
def bare(thin_python: Path) -> dict[str, Any]:
    """What the program's tools see on the processor, where nothing of ours is."""
    found: dict[str, Any] = printed_by(thin_python, "unseen.py")
    return found


@pytest.mark.parametrize(
    "tool",
    ["value", "operations", "functions", "trace", "early trace", "nodes"],
)
def test_a_tool_of_the_program_sees_what_it_sees_on_the_processor(
    run_program: RunProgram, bare: dict[str, Any], tool: str
) -> None:
    assert run_program("unseen.py").printed[tool] == bare[tool]


@pytest.mark.parametrize("tool", ["operations", "profile", "profile of shapes", "memory"])
def test_a_tool_of_the_program_sees_what_it_sees_without_values(
    run_program: RunProgram, tool: str
) -> None:
    without = run_program("unseen.py", options=WITHOUT_VALUES).printed
    assert run_program("unseen.py").printed[tool] == without[tool]


def test_a_profile_of_the_processor_has_no_operation_that_is_not_the_programs(
    run_program: RunProgram, bare: dict[str, Any]
) -> None:
    own, seen = (
        found["profile of the processor"] for found in (bare, run_program("unseen.py").printed)
    )
    assert set(seen) == set(own)
    # What an operation does with a number in place of a tensor is not recorded.
    assert all(count <= own[name] for name, count in seen.items())


@pytest.fixture(scope="module")
def unrecorded(thin_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the program's tools see on the phantom, where nothing of ours is in the process."""
    directory = tmp_path_factory.mktemp("bare")
    code, stdout, stderr = execute(
        [str(thin_python), find_program("unseen.py")], directory,
        dict(bare_environment(thin_python, gpu="h100-80gb", XDG_RUNTIME_DIR=str(directory))),
    )  # fmt: skip
    assert code == 0, stderr
    return json.loads(stdout.splitlines()[-1])


def test_a_run_without_values_is_not_seen_by_the_programs_tools(
    run_program: RunProgram, unrecorded: Any
) -> None:
    printed = run_program("unseen.py", options=WITHOUT_VALUES).printed
    # A number that is read, and what the processor does, are compared with the processor alone.
    for tool in unrecorded.keys() - {"value", "profile of the processor"}:
        assert printed[tool] == unrecorded[tool], tool


def test_a_recording_is_not_seen_by_the_programs_tools(
    thin_python: Path, tmp_path: Path, unrecorded: Any
) -> None:
    assert recorder(thin_python, tmp_path)("unseen.py").printed == unrecorded


@pytest.mark.parametrize(
    ("case", "printed"),
    [
        ("failing_step", [1, 4.0]),
        ("own_allocator", [32 << 20, True]),
        ("jagged", [[8, 16], [16, 8]]),
        ("swapped", ["torch.float16", [256, 256]]),
    ],
)
def test_no_hook_raises_in_the_program(
    run_program: RunProgram, case: str, printed: list[Any]
) -> None:
    outcome = run_program("unseen_faults.py", case)
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.printed == printed
    assert not [what for texts in outcome.reads.values() for what in texts if "followed" in what]


def test_a_step_that_raised_is_over(run_program: RunProgram) -> None:
    record = run_program("unseen_faults.py", "failing_step").record
    marks = [mark.kind.value for mark in record.marks]
    assert marks.count("step") == 4
    assert marks.count("optimizer_begin") == marks.count("optimizer_end") == 5


def test_hooks_that_fail_are_counted_and_the_program_goes_on(run_program: RunProgram) -> None:
    outcome = run_program("unseen_faults.py", "failing_hooks")
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.printed == [[8, 8], 0.0]
    assumed = outcome.document["basis"]["allocator"]["assumptions"]
    failed = {one["what"]: one["count"] for one in assumed if "(ValueError)" in one["what"]}
    for hook in ("_before_module", "_begin_backward", "_end_backward", "_after_optimizer"):
        assert failed[f"{hook} not followed: unknown (ValueError)"] == 2
    assert any(what.startswith("aten.sum") for what in failed)


@pytest.mark.parametrize("options", [(), WITHOUT_VALUES])
def test_dynamo_compiles_nothing_of_ours(run_program: RunProgram, options: tuple[str, ...]) -> None:
    outcome = run_program("unseen_faults.py", "broken_graph", options=options)
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.printed == [6]
