"""Whether a program fits without a plan, by one run on its device."""

from __future__ import annotations

from dataclasses import replace

from ullage.explain.verdict import ExitCode
from ullage.gpus.catalog import Gpu
from ullage.plan.costs.clocked import timed
from ullage.plan.costs.measure import Runner, RunRequest
from ullage.plan.findings import AS_IT_IS, Candidate, FitReport, failed
from ullage.plan.outcomes import judge


def fit_unchanged(run: Runner, gpu: Gpu, budget_bytes: int) -> FitReport | None:
    """The report of a program that fits without a plan.

    None: it does not fit, or only with retries of the allocator, which cost time.
    """
    (report,) = run([RunRequest(None, gpu, describes=True, is_fresh=True)])
    observation = judge(report, budget_bytes)
    if not observation.fits or observation.num_retries or not report.devices:
        return None
    outcome = report.program.plan
    time = timed(report)
    candidate = Candidate(
        AS_IT_IS,
        (),
        0.0 if time is None else time.step.s,
        observation.allocated_bytes,
        observation.used_bytes,
        observation,
        time=time,
    )
    return replace(
        failed(report, gpu, budget_bytes, ""),
        as_it_is=candidate,
        best=candidate,
        candidates=(candidate,),
        failure="",
        made_for=None if outcome is None else outcome.found,
        exit_code=ExitCode.FINE,
    )
