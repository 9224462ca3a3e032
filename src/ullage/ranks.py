"""Several ranks of one job, each played by itself: what `ullage run --ranks` and `ullage.run_ranks`
are.

    run = ullage.run_ranks(["train.py"], [0, 63], world_size=64)
    run.devices[1].rank, run.devices[1].totals.peak_allocated_bytes
    ullage.run_ranks(["train.py"], "distinct", world_size=64).report.covers
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from ullage.api import Run
from ullage.errors import SpecError
from ullage.jobs import Job, ProgramOptions, make_job, make_options
from ullage.parallel import ParallelRuns
from ullage.phantom.device import choose_device
from ullage.phantom.launch import run_directory
from ullage.phantom.rank import choose_ranks

if TYPE_CHECKING:
    from ullage.explain.ranks import Axis

DISTINCT = "distinct"
# Each is a process; a job whose ranks differ in more ways is looked at by naming some.
_MAX_DISTINCT = 256


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
        options: alloc_conf, steps, real_init, dummy_weights, values and assume of `ullage.run`.

    Raises:
        SpecError: an option or the program is not possible.
        EnvironmentProblem: no torch for CUDA there, or one that this ullage does not know.
    """
    numbers = (0,) if isinstance(ranks, str) else tuple(sorted(ranks))
    if isinstance(ranks, str) and ranks != DISTINCT:
        raise SpecError(f"ranks={ranks!r} is not a list of ranks; expected some, or {DISTINCT!r}")
    first = choose_ranks(numbers, world_size, local_world_size)[0]
    job = make_job(
        program,
        device=choose_device(gpu, memory=memory, capability=capability, budget=budget),
        python=python,
        options=replace(make_options(**options), rank=first, has_snapshot=snapshots is not None),
    )
    kept = None if snapshots is None else _make_directory(Path(snapshots), force=force)
    started_s = time.monotonic()
    with run_directory() as mail:
        job = replace(job, options=replace(job.options, mail=mail))
        survey = Survey(job, on_progress, on_failure, kept)
        survey.play(numbers)
        covers = (
            survey.find_distinct()
            if ranks == DISTINCT
            else {number: (number,) for number in numbers}
        )
    return survey.joined(covers, time.monotonic() - started_s)


def _make_directory(path: Path, *, force: bool) -> Path:
    """A directory without snapshots of ranks."""
    try:
        path.mkdir(exist_ok=True)
        old = sorted(path.glob("rank*.pickle"))
        if old and not force:
            raise SpecError(
                f"{str(old[0])!r} exists; give another directory, or --force to replace those of "
                "all ranks"
            )
        for one in old:
            one.unlink()
    except OSError as error:
        raise SpecError(
            f"the snapshots of several ranks go into a directory, and {str(path)!r} cannot be one: "
            f"{error.strerror or error}"
        ) from None
    return path


class Survey:
    """The ranks of one job that have been played, and what that says of the others.

    "distinct" goes along each axis of the mesh that the process groups of rank 0 tell of. Where the
    two ends of a stretch of ranks are alike, those between them are taken to be; where they are
    not, the stretch is halved. Of every combination of what was found along the axes one rank is
    played, and one more in the middle of the mesh to see whether it is what it should be.

    Args:
        job: any of its ranks.
        on_progress, on_failure: as for `ParallelRuns`.
        snapshots: a directory for those of the ranks that are played; None keeps none.
    """

    def __init__(
        self,
        job: Job,
        on_progress: Callable[[str], None] | None = None,
        on_failure: Callable[[str], None] | None = None,
        snapshots: Path | None = None,
    ) -> None:
        if job.options.rank is None:
            raise SpecError("the job has no ranks; give its world size")
        self._job = job
        self._rank = job.options.rank
        self._on_progress = on_progress
        self._on_failure = on_failure
        self._snapshots = snapshots
        self._runs: dict[int, Run] = {}
        self._digests: dict[int, bytes] = {}

    def play(self, numbers: Iterable[int]) -> None:
        """Plays those of the ranks that have not been, at once."""
        from ullage.explain.ranks import event_digest

        new = sorted(set(numbers) - self._runs.keys())
        if not new:
            return
        if len(self._runs) + len(new) > _MAX_DISTINCT:
            raise SpecError(
                f"the ranks differ in more than {_MAX_DISTINCT} ways; name those of interest, such "
                "as: --ranks 0,1"
            )
        jobs = [
            replace(
                self._job, options=replace(self._job.options, rank=replace(self._rank, number=one))
            )
            for one in new
        ]
        kept = self._snapshots
        snapshots = [None if kept is None else kept / f"rank{one}.pickle" for one in new]
        runs = ParallelRuns(jobs, self._on_progress, self._on_failure, snapshots)
        runs.run_all()
        if runs.was_interrupted:
            raise KeyboardInterrupt
        for number, run in zip(new, runs.results, strict=True):
            if run is not None:
                self._runs[number] = run
                self._digests[number] = event_digest(run.report)

    def find_distinct(self) -> dict[int, tuple[int, ...]]:
        """Plays what is needed; returns for each rank that is distinct the ranks it stands for."""
        from ullage.explain.ranks import find_axes

        world_size = self._rank.world_size
        groups = [
            group for process in self._runs[0].report.processes for group in process.record.groups
        ]
        axes = find_axes(groups, world_size)
        classes = self._classes_along(axes)
        corners = {rank: self._corner(rank, axes, classes) for rank in range(world_size)}
        self.play(corners.values())
        covers: dict[bytes, list[int]] = {}
        for rank, corner in corners.items():
            digest = self._digests[rank if rank in self._digests else corner]
            covers.setdefault(digest, []).append(rank)
        return {ranks[0]: tuple(ranks) for ranks in covers.values()}

    def _classes_along(self, axes: Sequence[Axis]) -> list[list[int]]:
        """For each place along each axis the first place that is like it and all between."""
        borders: list[set[int]] = [{0} for _ in axes]
        stretches = [(number, 0, axis.size - 1) for number, axis in enumerate(axes)]
        checked = sum(axis.stride * (axis.size // 2) for axis in axes)
        while stretches:
            ends = {
                axes[number].stride * place
                for number, low, high in stretches
                for place in (low, high)
            }
            self.play({*ends, checked})
            halves = []
            for number, low, high in stretches:
                stride = axes[number].stride
                if self._digests[low * stride] == self._digests[high * stride]:
                    continue
                if high - low == 1:
                    borders[number].add(high)
                    continue
                middle = (low + high) // 2
                halves += [(number, low, middle), (number, middle, high)]
            stretches = halves
        return [
            [max(border for border in found if border <= place) for place in range(axis.size)]
            for axis, found in zip(axes, borders, strict=True)
        ]

    @staticmethod
    def _corner(rank: int, axes: Sequence[Axis], classes: Sequence[Sequence[int]]) -> int:
        """The rank that is like another along every axis by itself."""
        return sum(
            axis.stride * alike[rank // axis.stride % axis.size]
            for axis, alike in zip(axes, classes, strict=True)
        )

    def joined(self, covers: Mapping[int, Sequence[int]], wall_s: float) -> Run:
        """One report of those ranks."""
        from ullage.explain.ranks import join_ranks

        reports = [self._runs[rank].report for rank in sorted(covers)]
        unplayed = sorted({rank for ranks in covers.values() for rank in ranks} - self._runs.keys())
        return Run(join_ranks(reports, covers, wall_s, unplayed))
