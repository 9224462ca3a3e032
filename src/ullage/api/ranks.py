"""Several ranks of one job, each played by itself: what `ullage run --ranks` and `ullage.run_ranks`
are.

    run = ullage.run_ranks(["train.py"], [0, 63], world_size=64)
    run.devices[1].rank, run.devices[1].totals.peak_allocated_bytes
    ullage.run_ranks(["train.py"], "distinct", world_size=64).report.covers
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from ullage.api.run import Run
from ullage.errors import SpecError
from ullage.files import make_directory
from ullage.gpus.price import check_price
from ullage.phantom.device import choose_device
from ullage.phantom.launch import run_directory
from ullage.phantom.rank import choose_ranks
from ullage.runs.job import ProgramOptions, make_job, make_options
from ullage.runs.survey import DISTINCT, Survey

if TYPE_CHECKING:
    pass


def run_ranks(
    program: Sequence[str],
    ranks: Sequence[int] | str,
    *,
    world_size: int,
    local_world_size: int | None = None,
    gpu: str | None = None,
    memory: str | int | None = None,
    capability: str | None = None,
    budget: str | int | None = None,
    python: str | os.PathLike[str] | None = None,
    snapshots: str | os.PathLike[str] | None = None,
    force: bool = False,
    on_progress: Callable[[str], None] | None = None,
    on_failure: Callable[[str], None] | None = None,
    price: float | None = None,
    **options: Unpack[ProgramOptions],
) -> Run:
    """Runs a program once for each of several ranks of a distributed job; one report of all.

    Args:
        program: its words, as for `ullage.run`.
        ranks: their numbers, or "distinct": as many as it takes to know them all (see `Survey`).
        world_size: the number of ranks of the job.
        local_world_size: how many of them are on one node; None is 8, or all of a smaller job.
        gpu, memory, capability, budget, python: as for `ullage.run`.
        snapshots: a directory, made where it is not there, for a snapshot of every rank that is
            played: rank0.pickle, rank63.pickle; None keeps none.
        force: replace the snapshots of ranks that are in it.
        on_progress: called with a line, such as "3 of 8 runs", as runs end.
        on_failure: called with the last output of a program that failed.
        price: dollars for a GPU-hour; implies `time`.
        options: alloc_conf, steps, real_init, dummy_weights, values, assume, time and interconnect
            of `ullage.run`.

    Raises:
        SpecError: an option or the program is not possible.
        EnvironmentProblem: no torch for CUDA there, or one that this ullage does not know.
    """
    numbers = (0,) if isinstance(ranks, str) else tuple(sorted(ranks))
    if isinstance(ranks, str) and ranks != DISTINCT:
        raise SpecError(f"ranks={ranks!r} is not a list of ranks; expected some, or {DISTINCT!r}")
    check_price(price)
    if price is not None:
        options["time"] = True
    first = choose_ranks(numbers, world_size, local_world_size)[0]
    job = make_job(
        program,
        device=choose_device(gpu, memory=memory, capability=capability, budget=budget),
        python=python,
        options=replace(make_options(**options), rank=first, has_snapshot=snapshots is not None),
    )
    directory = None if snapshots is None else _make_directory(Path(snapshots), force=force)
    started_s = time.monotonic()
    with run_directory() as mail:
        job = replace(job, options=replace(job.options, mail=mail))
        survey = Survey(job, on_progress, on_failure, directory)
        survey.play(numbers)
        covers = (
            survey.find_distinct()
            if ranks == DISTINCT
            else {number: (number,) for number in numbers}
        )
    report = survey.joined(covers, time.monotonic() - started_s)
    return Run(replace(report, price=price))


def _make_directory(path: Path, *, force: bool) -> Path:
    try:
        make_directory(path)
        old = sorted(path.glob("rank*.pickle"))
        if old and not force:
            raise SpecError(
                f"{str(old[0])!r} exists; give another directory, or --force to replace those of "
                "all ranks"
            )
        for snapshot in old:
            snapshot.unlink()
    except OSError as error:
        raise SpecError(
            f"the snapshots of several ranks go into a directory, and {str(path)!r} cannot be one: "
            f"{error.strerror or error}"
        ) from None
    return path
