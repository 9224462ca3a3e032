"""A job on the phantom under a guard: it is run again where it ends out of memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ullage.act.guard.ladder import load_plans
from ullage.explain.verdict import Verdict
from ullage.search.runs.job import Job
from ullage.search.runs.supervisor import Start, supervise

if TYPE_CHECKING:
    from ullage.act.techniques.plan import Plan
    from ullage.explain.run import RunReport


def run_guarded(
    job: Job,
    plans: Sequence[str | os.PathLike[str]],
    resume: tuple[str, ...],
    run_one: Callable[..., RunReport],
    *,
    force: bool = False,
    say: Callable[[str], None] | None = None,
) -> tuple[Job, RunReport]:
    """Runs a job as `ullage exec --guard` runs a program.

    Args:
        job: of rung 0.
        plans, resume, say: as for `execute_guarded`.
        run_one: `run_job`, but for the job and `force`.
        force: whether the first run replaces a snapshot file, as each of the others does.

    Returns:
        the job of the last run, and its report.

    Raises:
        PlanError: a file is not a plan, or its plan cannot be a rung.
    """
    rungs = load_plans(plans) if plans else None

    def start_on(
        number: int, plan: Plan | None, words: tuple[str, ...]
    ) -> Start[tuple[Job, RunReport]]:
        tried = replace(
            job,
            program=replace(job.program, arguments=(*job.program.arguments, *words)),
            options=replace(job.options, plan=plan, chooses_rungs=rungs is None and not number),
        )
        report = run_one(tried, force=force or number > 0)
        outcome, failure = report.program.plan, None
        if report.verdict is Verdict.OUT_OF_MEMORY and report.program.exit_code:
            failure = f"the program ran out of memory ({report.reason})"
        chosen = () if outcome is None else outcome.rungs
        return Start((tried, report), failure, chosen)

    return supervise(start_on, rungs, resume, say or (lambda _line: None))
