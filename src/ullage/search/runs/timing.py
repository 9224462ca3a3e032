"""The time of a step of a watched process, from its log of work."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ullage.clock.interconnect import parse_interconnect
from ullage.ground.errors import SnapshotError
from ullage.log.model import MarkKind

if TYPE_CHECKING:
    from ullage.clock.step import Batch
    from ullage.clock.step_time import StepTime
    from ullage.facts.gpus import Gpu
    from ullage.log.kernel_times import KernelTimes
    from ullage.log.model import Record


def time_process(
    record: Record, gpu: Gpu, interconnect: str | None, measured: KernelTimes | None = None
) -> StepTime | None:
    """The time of the last step; None where no work was logged, or no step ended.

    Args:
        measured: kernels of a real step on this GPU, which correct the clock; None: none do.
    """
    if record.work_log is None:
        return None
    from ullage.clock.correction import Correction, find_correction
    from ullage.clock.costs import cost_of
    from ullage.clock.host import HOST_COSTS
    from ullage.clock.reading import given_work
    from ullage.clock.step import measure_step

    links = None if interconnect is None else parse_interconnect(interconnect)
    find_cost = partial(cost_of, gpu, interconnect=links)
    correction, works = Correction({}, ()), tuple(map(given_work, record.work_log.works))
    # A search for the smallest GPU looks at others, too.
    if measured is not None and measured.gpu == gpu.name:
        correction = find_correction(measured, works, find_cost)
    return measure_step(
        record.work_log,
        gpu,
        works,
        [correction.of(work, find_cost(work)) for work in works],
        HOST_COSTS,
        modules=record.modules,
        batch=_batch(record),
        num_ranks=max((len(group) for group in record.groups), default=1),
        corrections=correction.basis,
    )


def read_measured(path: Path) -> Record | None:
    """The record in a file; None: it was not recorded on a GPU.

    Raises:
        SnapshotError: it cannot be read.
    """
    from ullage.log.reader import parse_record
    from ullage.log.snapshot_reader import read_snapshot

    fields = read_snapshot(path).record
    record = None if fields is None else parse_record(fields)
    return None if record is None or record.measured is None else record


def read_kernel_times(path: Path) -> KernelTimes:
    """The kernels in the file of a recording.

    Raises:
        SnapshotError: it cannot be read, or has none.
    """
    from ullage.log.kernel_times import KernelTimes

    record = read_measured(path)
    if record is None or record.measured is None or not record.measured.kernels:
        raise SnapshotError(
            f"{str(path)!r} has no times of kernels; expected the file of `ullage record --kernels "
            "-- PROGRAM`, whose program made three steps"
        )
    recording = record.measured
    return KernelTimes(record.devices[0].name, recording.is_phantom, recording.kernels)


def _batch(record: Record) -> Batch:
    """The batch of the last step's forwards, by the shape of their first tensor."""
    from ullage.clock.step import Batch

    samples = tokens = 0
    last: list[tuple[int, int]] = []
    for mark in record.marks:
        if mark.kind is MarkKind.FORWARD_END and mark.inputs:
            last.append((mark.inputs[0][0] if mark.inputs[0] else 0, mark.num_tokens or 0))
        elif mark.kind is MarkKind.STEP:
            samples, tokens = (
                (sum(column) for column in zip(*last, strict=True)) if last else (0, 0)
            )
            last = []
    return Batch(samples, tokens)
