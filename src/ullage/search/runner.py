"""The runs of a search: turns requests into jobs, and returns their reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ullage.players.phantom.device import PhantomDevice
from ullage.players.phantom.rank import choose_ranks
from ullage.search.runs.job import Job, make_job, make_options
from ullage.search.runs.trials import Trials
from ullage.verbs.run.options import RunOptions

if TYPE_CHECKING:
    from ullage.explain.run import RunReport
    from ullage.search.costs.measure import Runner, RunRequest

# The steps of each run: the first has no optimizer states yet, the third is like all that follow.
STEPS = 3


def make_search_job(options: RunOptions, device: PhantomDevice) -> Job:
    """The job that a search makes plans for: it stops after `STEPS`, with unlimited memory.

    Raises:
        SpecError: an option or the program is invalid.
        EnvironmentProblem: no torch for CUDA there, or one that this ullage does not know.
    """
    steps = STEPS if options.steps is None else options.steps
    return make_job(
        options.program,
        device=replace(device, is_unlimited=True),
        python=options.python,
        options=make_options(replace(options, steps=steps, time=True)),
    )


def make_trial(job: Job, request: RunRequest) -> Job:
    """The job of a run."""
    device = job.device
    if request.gpu is not None:
        device = PhantomDevice(request.gpu, is_unlimited=False)
    rank = job.options.rank
    if rank is not None and request.is_last:
        (rank,) = choose_ranks((rank.world_size - 1,), rank.world_size, rank.local_world_size)
    options = replace(
        job.options,
        plan=request.plan,
        describes=request.describes,
        replays=request.replays,
        rank=rank,
    )
    return replace(job, device=device, options=options)


def make_runner(trials: Trials, job: Job) -> Runner:
    """A function that runs plans, each on its GPU or with unlimited memory."""

    def run(requests: Sequence[RunRequest]) -> list[RunReport]:
        jobs = [make_trial(job, request) for request in requests]
        is_fresh = any(request.is_fresh for request in requests)
        return trials.run(jobs, is_fresh=is_fresh)

    return run
