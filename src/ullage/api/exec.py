"""Runs a program under a plan or a memory cap, or supervised, on the GPU of this machine: nothing
is recorded, and nothing of the phantom is in it.

    code, outcome = execute(["train.py"], Plan.load("plan.json"))
    code = execute_capped(["train.py"], 20 << 30)
    code, outcome = execute_guarded(["train.py"], ["ladder.json"], resume=["--resume", "last.pt"])
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ullage.errors import PlanError
from ullage.phantom.launch import (
    SITE_DIR,
    Child,
    Ended,
    plan_variables,
    run_directory,
    start,
)
from ullage.phantom.program import UserProgram, put_before, resolve_program
from ullage.phantom.torch_build import find_version
from ullage.protocol.variables import CAP, CAP_NOTES, GUARD, PARENT
from ullage.runs.joint_start import Job, open_job, variables_of
from ullage.runs.supervisor import Start, supervise
from ullage.runtime.ladder import load_plans
from ullage.techniques.applying.outcome import Outcome, read_outcome
from ullage.techniques.made_for import public_version
from ullage.techniques.plan import Plan

Say = Callable[[str], None]
# For a rank that another one's end takes with it; then it is killed.
_PATIENCE_S = 10.0


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
        ended = _run(resolved, present, directory, cap_bytes, say)
        return ended.exit_code, _read(directory, plan)


def execute_capped(
    program: Sequence[str], cap_bytes: int, python: str | None = None, say: Say | None = None
) -> int:
    """Runs a program, each process of which may take only this much memory of a GPU.

    Args and errors are those of `execute`.

    Returns:
        Its exit code, 128 + the signal that ended it.
    """
    with run_directory() as directory:
        ended = _run(resolve_program(program, python), {}, directory, cap_bytes, say)
        return ended.exit_code


def execute_guarded(
    program: Sequence[str], plans: Sequence[str | os.PathLike[str]], python: str | None = None, *,
    resume: Sequence[str] = (), cap_bytes: int | None = None, say: Say | None = None,
) -> tuple[int, Outcome | None]:  # fmt: skip
    """Runs a program, and starts it again under the next rung where it ends out of memory.

    Where this process is one rank of several on a machine, by the variables of torchrun, all ranks
    are started again together.

    Args:
        program: its words, as for `ullage.run`.
        plans: the files of the rungs, from the fastest to the leanest, or the one of a ladder;
            empty: checkpoints.
        python: the interpreter of another environment.
        resume: the words that have it go on from its own checkpoint, appended to a restart.
        cap_bytes: the most memory of a GPU that each of its processes may take; None: no cap.
        say: called with a line for each start that ran out of memory, and if there was nothing to
            cap.

    Returns:
        The exit code of the last start (128 + the signal that ended it), and what became of its
        plan; None: it had none.

    Raises:
        SpecError: there is no such program, or its ranks are on several machines.
        EnvironmentProblem: there is no torch.
        PlanError: a file is not a plan, its plan cannot be a rung, or is for another torch.
    """
    resolved = resolve_program(program, python)
    rungs = load_plans(plans) if plans else None
    _check_version(resolved, rungs or ())

    def start_on(
        number: int, plan: Plan | None, words: tuple[str, ...]
    ) -> Start[tuple[int, Outcome | None]]:
        directory = job.begin(number)
        variables = {
            **plan_variables(directory, plan, describes=rungs is None and not number),
            **variables_of(number),
            GUARD: str(directory),
            PARENT: str(os.getpid()),
        }
        ended = _run(
            replace(resolved, arguments=(*resolved.arguments, *words)),
            {name: value for name, value in variables.items() if value},
            directory, cap_bytes, tell, on_poll=_end_with_others(job),
        )  # fmt: skip
        result = ended.exit_code, None if plan is None else _read(directory, plan)
        failure = job.find_failure() if ended.exit_code and not ended.was_interrupted else None
        if failure is None or not failure.is_out_of_memory:
            return Start(result, None)
        who = "the program" if failure.rank is None else f"rank {failure.rank}"
        text = f"{who} ran out of memory ({failure.text})"
        problem = job.wait_for_all()
        if problem and say is not None:
            say(f"ullage: guard: {text}: not started again: {problem}")
        return Start(result, None if problem else text, read_outcome(directory, plan).rungs)

    with open_job() as job:
        tell = say if say is not None and not job.rank else _say_nothing
        return supervise(start_on, rungs, tuple(resume), tell)


def _end_with_others(job: Job) -> Callable[[Child], None] | None:
    """What ends a rank of this supervisor once one of another is out of memory."""

    def look(child: Child) -> None:
        failure = job.failure
        if failure is not None and failure.is_out_of_memory:
            child.end(_PATIENCE_S, lambda: False)

    return look if job.is_joint else None


def _say_nothing(_text: str) -> None:
    return


def _run(
    program: UserProgram, variables: Mapping[str, str], directory: Path, cap_bytes: int | None,
    say: Say | None, *, on_poll: Callable[[Child], None] | None = None,
) -> Ended:  # fmt: skip
    environment = os.environ | variables
    notes = directory / "cap"
    if cap_bytes is not None:
        notes.mkdir()
        environment |= {CAP: str(cap_bytes), CAP_NOTES: str(notes)}
    put_before(environment, "PYTHONPATH", str(SITE_DIR))
    with start(program, environment) as child:
        ended = child.wait(None if on_poll is None else partial(on_poll, child))
    if cap_bytes is not None:
        _say_unused(notes, "cap: no GPU was capped", say)
    return ended


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
