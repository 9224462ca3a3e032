"""Runs a program under a plan or a memory cap, or guarded, on the GPU of this machine: nothing is
recorded, and nothing of the phantom is in it.

    code, outcome = execute(["train.py"], Plan.load("plan.json"))
    code = execute_capped(["train.py"], 20 << 30)
    code = execute_guarded(["train.py"], ["half.json", "all.json"])
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ullage.errors import PlanError
from ullage.phantom.launch import SITE_DIR, plan_variables, run_directory, start
from ullage.phantom.program import UserProgram, put_before, resolve_program
from ullage.phantom.torch_build import find_version
from ullage.protocol.run import GuardVariables
from ullage.protocol.variables import CAP, CAP_NOTES, PLAN_NOTES
from ullage.runtime.ladder import load_plans
from ullage.techniques.applying.outcome import Outcome, read_outcome
from ullage.techniques.made_for import public_version
from ullage.techniques.plan import Plan

Say = Callable[[str], None]


def execute(
    program: Sequence[str], plan: Plan, python: str | None = None, *,
    cap_bytes: int | None = None, say: Say | None = None,
) -> tuple[int, Outcome]:  # fmt: skip
    """Runs a program under a plan.

    Args:
        program: its words, as for `ullage.run`.
        plan: what is applied to the model that it trains.
        python: the interpreter of another environment.
        cap_bytes: the most memory of a GPU that each of its processes may take; None: no cap.
        say: called with a line if there was nothing to cap.

    Returns:
        Its exit code (128 + the signal that ended it), and what became of the plan.

    Raises:
        SpecError: there is no such program.
        EnvironmentProblem: there is no torch.
        PlanError: that torch is another one than the plan was made for.
    """
    resolved = resolve_program(program, python)
    _check_version(resolved, [plan])
    with run_directory() as directory:
        variables = plan_variables(directory, plan)
        present = {name: value for name, value in variables.items() if value}
        code = _run(resolved, present, directory, cap_bytes, say)
        return code, _read(directory, plan)


def execute_capped(
    program: Sequence[str], cap_bytes: int, python: str | None = None, say: Say | None = None
) -> int:
    """Runs a program, each process of which may take only so much memory of a GPU.

    Args and errors are those of `execute`.

    Returns:
        Its exit code, 128 + the signal that ended it.
    """
    with run_directory() as directory:
        return _run(resolve_program(program, python), {}, directory, cap_bytes, say)


def execute_guarded(
    program: Sequence[str], plans: Sequence[str | os.PathLike[str]], python: str | None = None, *,
    cap_bytes: int | None = None, say: Say | None = None,
) -> int:  # fmt: skip
    """Runs a program whose models are guarded against running out of memory.

    Args:
        program: its words, as for `ullage.run`.
        plans: the files of the rungs, from the fastest to the leanest; empty: checkpoints.
        python: the interpreter of another environment.
        cap_bytes: the most memory of a GPU that each of its processes may take; None: no cap.
        say: called with a line if there was nothing to guard, or to cap.

    Returns:
        Its exit code (128 + the signal that ended it).

    Raises:
        SpecError: there is no such program.
        EnvironmentProblem: there is no torch.
        PlanError: a file is no plan, its plan cannot be a rung, or is for another torch.
    """
    resolved = resolve_program(program, python)
    _check_version(resolved, load_plans(plans))
    files = tuple(Path(plan).absolute() for plan in plans)
    with run_directory() as directory:
        variables = {**GuardVariables(files).to_environment(), PLAN_NOTES: str(directory)}
        code = _run(resolved, variables, directory, cap_bytes, say)
        _say_unused(directory, "guard: no model was guarded", say)
        return code


def _run(
    program: UserProgram, variables: Mapping[str, str], directory: Path, cap_bytes: int | None,
    say: Say | None,
) -> int:  # fmt: skip
    environment = os.environ | variables
    notes = directory / "cap"
    if cap_bytes is not None:
        notes.mkdir()
        environment |= {CAP: str(cap_bytes), CAP_NOTES: str(notes)}
    put_before(environment, "PYTHONPATH", str(SITE_DIR))
    with start(program, environment) as child:
        code = child.wait().exit_code
    if cap_bytes is not None:
        _say_unused(notes, "cap: no GPU was capped", say)
    return code


def _read(directory: Path, plan: Plan | None) -> Outcome:
    """The outcome, where a process without torch has left nothing."""
    outcome = read_outcome(directory, plan)
    has_notes = outcome.is_applied or any(directory.glob("plan-*.json"))
    return outcome if has_notes else replace(outcome, reason="the program did not import torch")


def _say_unused(directory: Path, what: str, say: Say | None) -> None:
    outcome = _read(directory, None)
    if say is not None and not outcome.is_applied:
        say(f"ullage: {what}: {outcome.reason}")


def _check_version(program: UserProgram, plans: Sequence[Plan]) -> None:
    """Raises PlanError if a plan was made for another torch than that of a program."""
    version = find_version(program.python)
    for plan in plans:
        planned = plan.made_for.torch
        if public_version(version) != public_version(planned):
            raise PlanError(
                f"the plan was made for torch {planned}, and {program.python} has {version}; make "
                "one for this torch with `ullage fit`"
            )
