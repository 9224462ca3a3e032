"""The record of a process that was killed before it wrote one: the peaks that its mark tells, and
nothing of who held them.

    record_of(4711, read_levels(mark), device, torch="2.15.0+cu132")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ullage.ground.version import __version__
from ullage.log.assumptions import Assumption, AssumptionKind
from ullage.log.model import Claims, DeviceTotals, Events, ExitKind, ProgramExit, Record, Workspaces
from ullage.players.inside.process.levels import DeviceLevels, Levels

if TYPE_CHECKING:
    from ullage.facts.gpus.catalog import Gpu


def record_of(pid: int, levels: Levels, gpu: Gpu, torch: str) -> Record:
    """A record without events. What was asked for is not known: it is at most what was allocated,
    which stands in its place.
    """
    none = np.empty(0, dtype=np.int64)
    lost = "its peaks are known, and not who held them"
    owners = Assumption(AssumptionKind.OWNERS, "who held what in a process that was killed")
    has_owners = any(device.peak_allocated_bytes for device in levels.devices.values())
    return Record(
        ullage=__version__,
        torch=torch,
        cuda=None,
        python="",
        argv=(),
        pid=pid,
        rank=None,
        started_s=0.0,
        ended_s=0.0,
        exit=ProgramExit(ExitKind.RETURNED, None, None, None, 0),
        devices=tuple(_totals(index, device, gpu) for index, device in levels.devices.items()),
        first_position=0,
        events=Events(
            none, none, none, none.astype(np.uint8), none.astype(np.uint8),
            none.astype(np.int32), none.astype(np.bool_),
        ),
        marks=(),
        claims=Claims(none, none, none, (), ()),
        workspaces=Workspaces(none, none, none, none, ()),
        basis=(owners,) if has_owners else (),
        warnings=(f"process {pid} was ended before it wrote its record: {lost}",),
    )  # fmt: skip


def _totals(index: int, device_levels: DeviceLevels, gpu: Gpu) -> DeviceTotals:
    return DeviceTotals(
        index=index,
        name=gpu.name,
        total_bytes=gpu.total_bytes,
        context_bytes=gpu.context_high_bytes,
        non_torch_bytes=device_levels.peak_non_torch_bytes,
        peak_requested_bytes=device_levels.peak_allocated_bytes,
        peak_allocated_bytes=device_levels.peak_allocated_bytes,
        peak_reserved_bytes=device_levels.peak_reserved_bytes,
        num_allocs=0,
        num_segments=0,
        num_ooms=device_levels.num_ooms,
        num_alloc_retries=0,
    )
