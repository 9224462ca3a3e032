"""The ranks of a distributed job: which ranks are alike, and one report joined from the reports of
single ranks.

Two ranks are alike if their allocators received the same requests in the same order; consecutive
frees may be in any order.

    event_digest(report) == event_digest(other)
    find_axes([(0, 1, 2, 3), (0, 4)], world_size=8)     # strides and sizes: (1, 4), (4, 2)
    join_ranks([report_of_rank_0, report_of_rank_7], covers={0: (0, 1, 2), 7: (7,)})
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ullage.explain.basis import allocator_basis
from ullage.explain.host import host_memory
from ullage.explain.run import RunReport
from ullage.explain.stops import find_stop
from ullage.explain.verdict import Verdict
from ullage.log.assumptions import Assumption, AssumptionKind

_GRAVITY = (Verdict.FITS, Verdict.OUT_OF_MEMORY, Verdict.FAILED)


class Axis(NamedTuple):
    """An axis of the mesh that ranks form: neighbours along it are `stride` ranks apart."""

    stride: int
    size: int


def event_digest(report: RunReport) -> bytes:
    """Returns a digest of the sizes that the processes of a run requested from their allocators."""
    digest = hashlib.blake2b()
    for process in report.processes:
        sizes = process.record.events.size_bytes
        # Frees are omitted: NCCL's watchdog frees the buffers of collectives at times of its own.
        digest.update(sizes[sizes > 0].tobytes())
    return digest.digest()


def find_axes(groups: Iterable[Sequence[int]], world_size: int) -> tuple[Axis, ...]:
    """Returns the mesh that the process groups of rank 0 imply, the smallest stride first.

    Args:
        groups: the ranks of each group; groups that do not begin with rank 0, or are not evenly
            spaced, are ignored. Ranks that no group covers form axes too, so that the sizes
            multiply to `world_size`.
        world_size: the number of ranks.
    """
    peers: dict[int, int] = {}
    for group in groups:
        if len(group) < 2 or group[0] != 0:
            continue
        stride = group[1]
        if list(group) == list(range(0, stride * len(group), stride)):
            peers[stride] = min(len(group), peers.get(stride, len(group)))
    axes, covered = [], 1
    strides = sorted(peers)
    for stride, following in itertools.zip_longest(strides, strides[1:], fillvalue=world_size):
        # A group that spans several axes, such as the group of all ranks, ends at the next axis.
        size = min(peers[stride], following // stride)
        if stride % covered or world_size % (stride * size):
            continue
        if stride > covered:
            axes.append(Axis(covered, stride // covered))
        axes.append(Axis(stride, size))
        covered = stride * size
    if covered < world_size:
        axes.append(Axis(covered, world_size // covered))
    return tuple(axes)


def name_ranks(ranks: Sequence[int]) -> str:
    """Names ranks concisely: "ranks 0-3, 7"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    names = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(names)}"


def join_ranks(
    reports: Sequence[RunReport],
    covers: Mapping[int, Sequence[int]],
    wall_s: float,
    unplayed: Sequence[int] = (),
) -> RunReport:
    """Joins the reports of ranks that were each run alone into one, in the order of the ranks.

    Args:
        reports: one report per rank.
        covers: for each rank that was run, the ranks that it represents.
        wall_s: the time from the start of the first run to the end of the last.
        unplayed: the ranks that were not run, in order.
    """
    worst = max(reports, key=lambda report: _GRAVITY.index(report.verdict))
    processes = tuple(process for report in reports for process in report.processes)
    records = [process.record for process in processes]
    rank = worst.processes[0].record.rank if worst.processes else None
    which = "" if rank is None or worst.verdict is Verdict.FITS else f"rank {rank}: "
    fits_on = [name for name in reports[0].fits_on if all(name in r.fits_on for r in reports)]
    warnings = dict.fromkeys(warning for report in reports for warning in report.warnings)
    what = f"{name_ranks(unplayed)}, not played: like those on both sides in the mesh"
    omitted = [Assumption(AssumptionKind.PLAY, what, count=len(unplayed))] if unplayed else []
    return replace(
        worst,
        reason=f"{which}{worst.reason}",
        program=replace(worst.program, wall_s=wall_s),
        host=host_memory(records),
        processes=processes,
        devices=tuple(device for report in reports for device in report.devices),
        allocator_basis=allocator_basis(records, omitted),
        fits_on=tuple(fits_on),
        warnings=tuple(warnings),
        covers=tuple((rank, tuple(ranks)) for rank, ranks in sorted(covers.items())),
        stop=find_stop(record.exit for record in records),
    )
