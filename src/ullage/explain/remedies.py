"""Tries the remedies of findings by arithmetic on a trace: do they make the program fit?

findings = derive_trials(report, find_findings(report))
findings[1].trial.makes_it_fit, findings[1].trial.reason

Arithmetic alone can answer no, never yes. It does so where a remedy frees less than the failed
request lacked. Where a remedy frees enough, the trace still ends there:
explain/whatif/remedies.py replays it, and search/remedy_runs.py runs the program.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ullage.explain.moments.spikes import levels_without
from ullage.explain.oom import Cause, Shortage
from ullage.explain.rules.rule import Finding, Kind
from ullage.explain.snapshot import DeviceSnapshot, SnapshotReport
from ullage.explain.trial import MakesItFit, Relief, Trial
from ullage.ground.errors import SnapshotError
from ullage.ground.units import format_bytes
from ullage.log.model import Record
from ullage.log.replay import Replay
from ullage.log.snapshot import Int64Array

# How many findings of a program that fits are examined.
FIRST = 3
EXPANDABLE = "expandable_segments:True"
_OOM_FAMILY = "UL15"
_TIME_ALONE = "it saves time, not memory of the device"
# Steps that are this much alike show what a step needs.
_ALIKE_FRAC = 0.01
_MIN_STEPS = 3


@dataclass(frozen=True, slots=True)
class Room:
    """The room of a device's allocator when a request failed, and what the request needed.

    Attributes:
        limit_bytes: what it held, and what the device had free.
        needed_bytes: what was allocated, and the request.
    """

    limit_bytes: int
    needed_bytes: int

    @property
    def missing_bytes(self) -> int:
        """The bytes that no setting of the allocator can find; negative where there is room."""
        return self.needed_bytes - self.limit_bytes


def room_of(shortage: Shortage) -> Room:
    """The room at a failed request."""
    limit = shortage.reserved_bytes + shortage.device_free_bytes
    if shortage.is_limited:
        limit = shortage.reserved_bytes + shortage.requested_bytes - 1
    return Room(limit, shortage.allocated_bytes + shortage.requested_bytes)


def derive_trials(report: SnapshotReport, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings, each of a device that ran out of memory and the first `FIRST` of any report
    with what arithmetic says of its remedy.
    """
    devices = {device.index: device for device in report.devices}
    return tuple(
        replace(finding, trial=_derive(finding, devices[finding.device]))
        if number < FIRST or ran_out(devices[finding.device])
        else finding
        for number, finding in enumerate(findings)
    )


def derive_whole(
    report: SnapshotReport, findings: Sequence[Finding], limit_bytes: int
) -> tuple[Finding, ...]:
    """The findings of a trace of the whole program, of which the allocator may have this much."""
    devices = {device.index: device for device in report.devices}
    return tuple(
        replace(finding, trial=_of_whole(finding, devices[finding.device], limit_bytes))
        for finding in findings
    )


def _of_whole(finding: Finding, device: DeviceSnapshot, limit_bytes: int) -> Trial:
    peak = device.peak_allocated_bytes
    has = f"the allocator can have {format_bytes(limit_bytes)}"
    if finding.rule.kind is Kind.TIME:
        return Trial(MakesItFit.NO, _TIME_ALONE)
    if sets_allocator(finding):
        if peak > limit_bytes:
            return Trial(MakesItFit.NO, f"{format_bytes(peak)} are allocated at once, {has}", peak)
        return Trial(MakesItFit.NOT_KNOWN, f"{format_bytes(peak)} are allocated at once, {has}")
    if finding.relief is None:
        return _of_gain(finding.gain_bytes, Room(limit_bytes, peak))
    lower = int(levels_under(finding.relief, device).max())
    reason = f"with it {format_bytes(lower)} are allocated at once, {has}"
    if lower - _doubt(finding.relief, peak - lower) > limit_bytes:
        return Trial(MakesItFit.NO, reason, lower)
    return Trial(MakesItFit.NOT_KNOWN, f"{reason}; no run shows what else it does", lower)


def ran_out(device: DeviceSnapshot) -> bool:
    """True if running out of memory ended the program there."""
    return device.shortage is not None and not device.shortage.was_survived


def sets_allocator(finding: Finding) -> bool:
    """True if the change is a setting of the allocator."""
    return EXPANDABLE in finding.change


def _derive(finding: Finding, device: DeviceSnapshot) -> Trial:
    shortage = device.shortage
    if shortage is None or shortage.was_survived:
        return _without_shortage(finding, device)
    room = room_of(shortage)
    if finding.rule.kind is Kind.TIME:
        return Trial(MakesItFit.NO, _TIME_ALONE)
    if sets_allocator(finding):
        return _of_setting(room)
    if finding.rule.code.startswith(_OOM_FAMILY) and finding.relief is None:
        return _of_cause(shortage, room)
    if finding.relief is not None:
        return _of_relief(finding.relief, device, shortage, room)
    return _of_gain(finding.gain_bytes, room)


def _without_shortage(finding: Finding, device: DeviceSnapshot) -> Trial:
    """Nothing has to be made to fit: the peak under the remedy is what can be said."""
    if finding.relief is None or device.replay.contradictions:
        return Trial(MakesItFit.NOT_KNOWN, "the program did not run out of memory here")
    peak = int(levels_under(finding.relief, device).max())
    return Trial(
        MakesItFit.NOT_KNOWN,
        f"the program did not run out of memory here; with it the peak of this trace would be "
        f"{format_bytes(peak)} instead of {format_bytes(device.peak_allocated_bytes)}",
        peak,
    )


def _of_setting(room: Room) -> Trial:
    needed = (
        f"{format_bytes(room.needed_bytes)} were needed with the request, and the allocator could "
        f"have {format_bytes(room.limit_bytes)}"
    )
    if room.missing_bytes > 0:
        return Trial(
            MakesItFit.NO, f"{needed}: no setting of the allocator makes up for that",
            room.needed_bytes,
        )  # fmt: skip
    return Trial(
        MakesItFit.NOT_KNOWN,
        f"{needed}: there is room for this request, but the trace ends with it",
    )


def _of_cause(shortage: Shortage, room: Room) -> Trial:
    if shortage.cause is Cause.SPIKE and room.limit_bytes > shortage.allocated_bytes:
        free = room.limit_bytes - shortage.allocated_bytes
        parts = -(-shortage.requested_bytes // free)
        return Trial(
            MakesItFit.NOT_KNOWN,
            f"{format_bytes(free)} are left for a request of "
            f"{format_bytes(shortage.requested_bytes)}: in {parts} parts or more it has room",
        )
    if shortage.cause is Cause.LIMITED:
        return Trial(
            MakesItFit.NOT_KNOWN,
            f"the device had {format_bytes(shortage.device_free_bytes)} free: this request has "
            "room without the limit, but the trace ends with it",
        )
    if shortage.cause is Cause.OTHERS:
        return Trial(MakesItFit.NOT_KNOWN, "what is not this process's is not in the trace")
    return Trial(
        MakesItFit.NOT_KNOWN,
        f"it is not a single change; {format_bytes(max(room.missing_bytes, 0))} have to go",
    )


def _of_relief(relief: Relief, device: DeviceSnapshot, shortage: Shortage, room: Room) -> Trial:
    freed = freed_at(relief, device.replay, shortage.event)
    needed = room.needed_bytes - freed
    reason = (
        f"it frees {format_bytes(freed)} of what was live at the request that failed, "
        f"{format_bytes(max(room.missing_bytes, 0))} were missing"
    )
    if needed - _doubt(relief, freed) > room.limit_bytes:
        return Trial(MakesItFit.NO, reason, needed)
    return Trial(MakesItFit.NOT_KNOWN, f"{reason}; the trace ends with it", needed)


def _doubt(relief: Relief, freed_bytes: int) -> int:
    """By how much more a change may free than its relief: as much again where that is a part of
    what it does, as a fused kernel saves smaller tensors beside the scores.
    """
    return 0 if relief.is_whole else freed_bytes


def _of_gain(gain_bytes: int, room: Room) -> Trial:
    reason = (
        f"it gains {format_bytes(gain_bytes)} at most, "
        f"{format_bytes(max(room.missing_bytes, 0))} were missing"
    )
    if gain_bytes < room.missing_bytes:
        return Trial(MakesItFit.NO, reason)
    return Trial(MakesItFit.NOT_KNOWN, f"{reason}; a trace does not show what it changes")


def freed_at(relief: Relief, replay: Replay, event: int) -> int:
    """The bytes that a relief takes away of those that are live right after an event."""
    blocks, numbers = replay.blocks, relief.blocks
    is_live = blocks.is_live(event)[numbers]
    sizes = blocks.size_bytes[numbers]
    if relief.death is not None:
        ends = np.maximum(relief.death, blocks.birth[numbers])
        return int(sizes[is_live & (ends <= event)].sum())
    return int((sizes[is_live] * (1 - relief.left_frac)).astype(np.int64).sum())


def levels_under(relief: Relief, device: DeviceSnapshot) -> Int64Array:
    """The levels of allocated bytes of a trace under a relief."""
    death, left_frac = relief.death, relief.left_frac
    return levels_without(device.replay.blocks, device.levels, relief.blocks, death, left_frac)


def shows_whole_steps(relief: Relief | None, device: DeviceSnapshot) -> bool:
    """True if the steps that ended before a request failed show what those after it need.

    They do where the last two have the same peak under the relief, and the step that failed had not
    gone beyond it with its request.
    """
    course, shortage = device.course, device.shortage
    if shortage is None or course.num_steps < _MIN_STEPS:
        return False
    levels = device.levels.allocated_bytes if relief is None else levels_under(relief, device)
    ends = [int(end) for end in course.step_ends[-3:]]
    first, last = (
        int(levels[begin + 1 : end + 1].max(initial=0)) for begin, end in itertools.pairwise(ends)
    )
    now = int(levels[shortage.event + 1]) + shortage.requested_bytes
    return abs(last - first) <= _ALIKE_FRAC * first and now <= last * (1 + _ALIKE_FRAC)


def find_remedies(path: str, record: Record) -> tuple[Finding, ...]:
    """The findings in the snapshot of a process with its record; empty where it cannot be read."""
    from ullage.explain.rules.registry import find_findings
    from ullage.explain.snapshot import explain_snapshot
    from ullage.log.snapshot_reader import read_snapshot

    try:
        report = explain_snapshot(read_snapshot(Path(path), has_record=False), record)
    except SnapshotError:
        return ()
    return derive_trials(report, find_findings(report))
