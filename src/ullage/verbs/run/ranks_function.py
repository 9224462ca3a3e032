"""Several ranks of one job, each played by itself: what `ullage run --ranks` and `ullage.run_ranks`
are.

    run = ullage.run_ranks(["train.py"], ranks=[0, 63], world_size=64)
    run.devices[1].rank, run.devices[1].totals.peak_allocated_bytes
    ullage.run_ranks(["train.py"], ranks="distinct", world_size=64).report.covers
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ullage.ground.errors import SpecError
from ullage.ground.files import make_directory
from ullage.ground.protocol.option import takes
from ullage.players.phantom.launch import run_directory
from ullage.players.phantom.rank import choose_ranks
from ullage.search.runs.job import make_job, make_options
from ullage.search.runs.survey import Survey
from ullage.verbs.run.function import Run, check_without, device_of
from ullage.verbs.run.options import DISTINCT, RunOptions


@takes(RunOptions)
def run_ranks(options: RunOptions) -> Run:
    """Runs a program once for each of several ranks of a distributed job; one report of all.

    `ranks` are their numbers, or "distinct": as many as it takes to know them all (see `Survey`).
    `snapshot` is a directory, made where it is not there, for a file of every rank that is played:
    rank0.pickle, rank63.pickle; with `force` the files of ranks that are in it are replaced.

    Raises:
        SpecError: an option or the program is not possible.
        EnvironmentProblem: no torch for CUDA there, or one that this ullage does not know.
    """
    check_without(options)
    ranks = 0 if options.ranks is None else options.ranks
    if options.world_size is None:
        raise SpecError(
            "--ranks names ranks of a job; give the number of its ranks: --world-size N"
        )
    if options.gpus is not None:
        raise SpecError("--gpus is for one process; a rank has one of the GPUs of its node")
    if isinstance(ranks, str) and ranks != DISTINCT:
        raise SpecError(f"ranks={ranks!r} is not a list of ranks; expected some, or {DISTINCT!r}")
    is_open = isinstance(ranks, str)
    numbers = (0,) if isinstance(ranks, int | str) else tuple(sorted(ranks))
    first = choose_ranks(numbers, options.world_size, options.local_world_size)[0]
    has_snapshot = options.snapshot is not None
    job = make_job(
        options.program,
        device=device_of(options),
        python=options.python,
        options=replace(make_options(options), rank=first, has_snapshot=has_snapshot),
    )
    directory = (
        None if options.snapshot is None
        else _make_directory(Path(options.snapshot), force=options.force)
    )  # fmt: skip
    with run_directory() as mail:
        job = replace(job, options=replace(job.options, mail=mail))
        survey = Survey(job, options.on_progress, options.on_failure, directory)
        report = survey.report(None if is_open else numbers)
    return Run(replace(report, price=options.price))


def _make_directory(path: Path, *, force: bool) -> Path:
    try:
        make_directory(path)
        old = sorted(path.glob("rank*.pickle"))
        if old and not force:
            raise SpecError(f"{str(old[0])!r} exists; give another directory, or --force")
        for snapshot in old:
            snapshot.unlink()
    except OSError as error:
        raise SpecError(
            f"the snapshots of several ranks go into a directory, and {str(path)!r} cannot be one: "
            f"{error.strerror or error}"
        ) from None
    return path
