"""Runs a program under a plan or a memory cap, or supervised, on the GPU of this machine: nothing
is recorded, and nothing of the phantom is in it.

    code, outcome = execute(["train.py"], plan="plan.json")
    code, _ = execute(["train.py"], cap="20GiB")
    code, outcome = execute(["train.py"], guard=["ladder.json"], resume=["--resume", "last.pt"])
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ullage.act.guard.ladder import load_plans
from ullage.act.techniques.applying.cap import RESERVE_BYTES
from ullage.act.techniques.applying.outcome import Outcome, read_outcome
from ullage.act.techniques.made_for import public_version
from ullage.act.techniques.plan import Plan
from ullage.ground.errors import PlanError, SpecError
from ullage.ground.protocol.option import takes
from ullage.ground.protocol.variables import CAP, CAP_NOTES, GUARD, PARENT
from ullage.ground.units import format_bytes, parse_bytes
from ullage.players.phantom.launch import (
    SITE_DIR,
    Child,
    Ended,
    plan_variables,
    run_directory,
    start,
)
from ullage.players.phantom.program import UserProgram, put_before, resolve_program
from ullage.players.phantom.torch_build import find_version
from ullage.search.runs.job import read_plan
from ullage.search.runs.joint_start import Job, open_job, variables_of
from ullage.search.runs.supervisor import Start, supervise
from ullage.verbs.exec.options import ExecOptions
from ullage.verbs.run.function import check_guard

Say = Callable[[str], None]
# For a rank that another one's end takes with it; then it is killed.
_PATIENCE_S = 10.0


@takes(ExecOptions)
def execute(options: ExecOptions) -> tuple[int, Outcome | None]:
    """Runs a program under a plan, a memory cap or a guard. Under a guard it is started again under
    the next rung where it ends out of memory; where this process is one rank of several on a
    machine, by the variables of torchrun, all ranks are started again together.

    Returns:
        The exit code of the last start (128 + the signal that ended it), and what became of its
        plan; None: it had none.

    Raises:
        SpecError: there is no such program, or its ranks are on several machines.
        EnvironmentProblem: there is no torch.
        PlanError: a file is not a plan, its plan cannot be a rung, or is for another torch.
    """
    check_guard(options.guard, options.plan, options.resume)
    cap_bytes = None if options.cap is None else parse_bytes(options.cap)
    if cap_bytes is not None and cap_bytes <= RESERVE_BYTES:
        raise SpecError(
            f"--cap {options.cap} leaves nothing: {format_bytes(RESERVE_BYTES)} of it are kept "
            "free, since the context grows"
        )
    if options.guard is not None:
        return _execute_guarded(options, options.guard, cap_bytes)
    if options.plan is None and cap_bytes is None:
        raise SpecError("no plan was given; for example: ullage exec --plan plan.json -- ...")
    plan = None if options.plan is None else read_plan(options.plan)
    if plan is not None and not plan.actions and options.say is not None:
        options.say(f"ullage: plan: {plan.summary}")
    resolved = resolve_program(options.program, options.python)
    _check_version(resolved, [] if plan is None else [plan])
    with run_directory() as directory:
        variables = {} if plan is None else plan_variables(directory, plan)
        present = {name: value for name, value in variables.items() if value}
        ended = _run(resolved, present, directory, cap_bytes, options.say)
        return ended.exit_code, None if plan is None else _read(directory, plan)


def _execute_guarded(
    options: ExecOptions, plans: Sequence[str], cap_bytes: int | None
) -> tuple[int, Outcome | None]:
    """Runs it under the rungs of these files, from the fastest to the leanest, or of a ladder's;
    none: checkpoints.
    """
    say = options.say
    resolved = resolve_program(options.program, options.python)
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
        tell = say if say is not None and not job.rank else (lambda _line: None)
        return supervise(start_on, rungs, tuple(options.resume), tell)


def _end_with_others(job: Job) -> Callable[[Child], None] | None:
    """The watch that ends a rank of this supervisor once one of another is out of memory."""

    def look(child: Child) -> None:
        failure = job.failure
        if failure is not None and failure.is_out_of_memory:
            child.end(_PATIENCE_S, lambda: False)

    return look if job.is_joint else None


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
    if cap_bytes is not None and say is not None:
        outcome = _read(notes, None)
        if not outcome.is_applied:
            say(f"ullage: cap: no GPU was capped: {outcome.reason}")
    return ended


def _read(directory: Path, plan: Plan | None) -> Outcome:
    """The outcome, where a process without torch has left nothing."""
    outcome = read_outcome(directory, plan)
    has_notes = outcome.is_applied or any(directory.glob("plan-*.json"))
    return outcome if has_notes else replace(outcome, reason="the program did not import torch")


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
