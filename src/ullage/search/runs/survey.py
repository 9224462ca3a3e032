"""Simulates ranks of one job, each in a run of its own, and finds which of them are alike.

report = Survey(job).report(None)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ullage.ground.errors import SpecError
from ullage.search.runs.job import Job
from ullage.search.runs.parallel import ParallelRuns

if TYPE_CHECKING:
    from ullage.explain.compare.ranks import Axis
    from ullage.explain.run import RunReport

# Each rank is a process. If more ranks differ, the user must name those of interest.
_MAX_DISTINCT = 256


class Survey:
    """The simulated ranks of one job, and what they show about the other ranks.

    "distinct" searches along each axis of the mesh that the process groups of rank 0 form. If the
    two ends of a range of ranks are alike, all ranks between them are assumed to be alike; else the
    range is halved. One rank is simulated for every combination of the classes on the axes, and one
    more in the middle of the mesh as a check of the assumption.

    Args:
        job: the job of any of the ranks.
        on_progress, on_failure: as for `ParallelRuns`.
        snapshots: a directory for the snapshots of the simulated ranks; None keeps none.
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
        self._runs: dict[int, RunReport] = {}
        self._digests: dict[int, bytes] = {}

    def play(self, numbers: Iterable[int]) -> None:
        """Simulates those of the ranks that were not simulated yet, all at once.

        Raises:
            SpecError: these would be more ranks than allowed.
            KeyboardInterrupt: the user stopped it.
        """
        from ullage.explain.compare.ranks import event_digest

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
                self._job, options=replace(self._job.options, rank=replace(self._rank, number=rank))
            )
            for rank in new
        ]
        directory = self._snapshots
        snapshots = [
            None if directory is None else directory / f"rank{rank}.pickle" for rank in new
        ]
        runs = ParallelRuns(jobs, self._on_progress, self._on_failure, snapshots)
        runs.run_all()
        if runs.was_interrupted:
            raise KeyboardInterrupt
        for number, run in zip(new, runs.results, strict=True):
            if run is not None:
                self._runs[number] = run
                self._digests[number] = event_digest(run)

    def find_distinct(self) -> dict[int, tuple[int, ...]]:
        """Simulates the ranks that are needed; returns each distinct rank with the ranks that it
        represents.
        """
        from ullage.explain.compare.ranks import find_axes

        world_size = self._rank.world_size
        groups = [group for process in self._runs[0].processes for group in process.record.groups]
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
        """For each index on each axis, the first index of its range of equal ranks."""
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
            [
                max(border for border in borders_of_axis if border <= place)
                for place in range(axis.size)
            ]
            for axis, borders_of_axis in zip(axes, borders, strict=True)
        ]

    @staticmethod
    def _corner(rank: int, axes: Sequence[Axis], classes: Sequence[Sequence[int]]) -> int:
        return sum(
            axis.stride * alike[rank // axis.stride % axis.size]
            for axis, alike in zip(axes, classes, strict=True)
        )

    def report(self, numbers: Sequence[int] | None) -> RunReport:
        """Simulates these ranks, or all that are distinct where none are named, and joins them."""
        started_s = time.monotonic()
        self.play(numbers or (0,))
        distinct = self.find_distinct() if numbers is None else None
        covers = distinct or {number: (number,) for number in numbers or ()}
        return self.joined(covers, time.monotonic() - started_s)

    def joined(self, covers: Mapping[int, Sequence[int]], wall_s: float) -> RunReport:
        """Joins the reports of those ranks."""
        from ullage.explain.compare.ranks import join_ranks

        reports = [self._runs[rank] for rank in sorted(covers)]
        unplayed = sorted({rank for ranks in covers.values() for rank in ranks} - self._runs.keys())
        return join_ranks(reports, covers, wall_s, unplayed)
