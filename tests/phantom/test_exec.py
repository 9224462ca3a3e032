"""What `ullage exec` says on stderr: one line of what it does, or why it does nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.phantom.alone import run_alone
from tests.phantom.bare_gpu import bare_environment
from tests.rows import each

from ullage.act.techniques.made_for import MadeFor
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Action

pytestmark = pytest.mark.phantom

NO_OPTIMIZER = "the program imported torch, and made no optimizer"
NO_CALL = "no module with parameters of an optimizer was called with gradients"


def lines(python: Path, word: str, *verb: str) -> tuple[int, list[str]]:
    """The exit code, and the lines of ullage."""
    done = run_alone(python, "plans/on_processor.py", word, verb=("exec", *verb))
    return done.returncode, [line for line in done.stderr.splitlines() if "ullage: " in line]


@pytest.fixture(scope="module")
def plan(thin_python: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a plan for the program."""
    torch = run_alone(thin_python, "plans/on_processor.py", "imports").stdout.strip()
    blocks = {str(number): "Sequential" for number in range(4)}
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    made_for = MadeFor(torch, "Sequential", 4 * 72, blocks, "SGD")
    Plan((Action("checkpoint", tuple(blocks)),), made_for).save(path)
    return str(path)


@each(
    ("word", "expected"),
    [
        ("imports", NO_OPTIMIZER),
        ("makes", NO_CALL),
        ("trains", ""),
    ],
)
def test_a_plan_is_said_in_a_line_or_why_there_is_none(
    thin_python: Path, plan: str, word: str, expected: str
) -> None:
    code, said = lines(thin_python, word, "--plan", plan)
    if expected:
        assert (code, len(said)) == (3, 1)
        assert said[0].startswith(f"ullage: the plan was not applied: {expected}; a plan never")
    else:
        assert (code, said) == (0, ["ullage: plan: checkpoint (4 modules) of Sequential"])


def test_a_cap_without_a_gpu_is_said_to_do_nothing(thin_python: Path) -> None:
    code, said = lines(thin_python, "trains", "--cap", "2GiB")
    line = "ullage: cap: no GPU was capped: no process of the program used CUDA"
    assert (code, said) == (0, [line]) and len(line) <= 80


def test_a_cap_above_what_the_gpu_has_is_said_to_limit_nothing(thin_python: Path) -> None:
    done = run_alone(
        thin_python, "linear.py", verb=("exec", "--cap", "100GiB"),
        env=bare_environment(thin_python, gpu="h100-80gb"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "ullage: cap: 100.0 GiB limit nothing: GPU 0 has 79.2 GiB\n" in done.stderr


def test_a_cap_that_is_too_small_ends_the_program_in_a_line(thin_python: Path) -> None:
    done = run_alone(
        thin_python, "linear.py", verb=("exec", "--cap", "600MiB"),
        env=bare_environment(thin_python, gpu="h100-80gb"),
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("ullage: cap: no GPU was capped: a cap of 600.0 MiB is too small")
    assert done.stderr.count("\n") == 1
