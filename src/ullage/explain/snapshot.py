"""A memory snapshot explained: the peak and who owned it, what is reserved and not used, what
grows, why it ran out, and what to do.

report = explain_snapshot(read_snapshot(path))
report.devices[0].owners_at_peak
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ullage.explain.fragmentation import Fragmentation, find_fragmentation, find_private
from ullage.explain.log import Log, read_log
from ullage.explain.moments.course import Course, Phase, StepSource
from ullage.explain.moments.growth import (
    Growth,
    SiteLevels,
    find_growth,
    find_site_levels,
    has_no_end,
)
from ullage.explain.moments.levels import Levels, find_levels
from ullage.explain.moments.spikes import Spike, find_spike
from ullage.explain.oom import Shortage, find_shortage
from ullage.explain.owners.dead_weight import DeadWeight, find_dead_weight
from ullage.explain.owners.holders import Holders, find_holders
from ullage.explain.owners.matching import Match, match_record
from ullage.explain.owners.modules import ModuleShare, share_by_module
from ullage.explain.owners.owners import Owners, guess_owners, sum_by_category
from ullage.explain.owners.sites import Sites, find_sites, has_python_file
from ullage.explain.tokens import TokenGrowth, find_token_growth
from ullage.explain.transfers import Pinned, Transfers, find_pinned, find_transfers
from ullage.ground.errors import SnapshotError
from ullage.ground.protocol.plain import As
from ullage.log.model import Category, DeviceTotals, EventKind, Record
from ullage.log.reader import parse_record
from ullage.log.replay import Replay, replay
from ullage.log.snapshot import Action, Int64Array, Snapshot, Stacks

# The steps of a trace that ullage did not record: by its annotations, else by its stacks.

_PROFILER_STEP, _OPTIMIZER_STEP = "ProfilerStep#", "Optimizer.step#"

_MIN_ROUNDS = 4
_MAX_DEPTH = 64
_INNER = frozenset({"_call_impl", "_wrapped_call_impl", "step", "backward", "forward"})


def guess_course(snapshot: Snapshot, replay: Replay, device: int) -> Course:
    """Guesses the course of a program over its events, as far as steps are seen."""
    ends, source = _annotated(snapshot, device), StepSource.ANNOTATIONS
    if not len(ends):
        ends = find_rounds(snapshot.stacks, replay)
        source = StepSource.STACKS if len(ends) else StepSource.NONE
    return Course(
        begin=np.array([-1], dtype=np.int64),
        phase=np.array([Phase.OUTSIDE], dtype=np.uint8),
        grad=np.zeros(1, dtype=np.bool_),
        step=np.zeros(1, dtype=np.int64),
        step_ends=ends,
        source=source,
        has_phases=False,
    )


def _annotated(snapshot: Snapshot, device: int) -> Int64Array:
    """The events before which steps ended, by the times of annotations; empty without any."""
    none: Int64Array = np.empty(0, dtype=np.int64)
    times = snapshot.events_of(device).time_us
    if not len(times) or not times.any():
        return none
    # A profiled iteration ends where the next begins; an optimizer's step ends an iteration.
    starts = [a.time_us for a in snapshot.annotations
             if a.name.startswith(_PROFILER_STEP) and a.stage == "START"]  # fmt: skip
    ended = [a.time_us for a in snapshot.annotations
             if a.name.startswith(_OPTIMIZER_STEP) and a.stage == "END"]  # fmt: skip
    moments = sorted(starts)[1:] if len(starts) > 1 else sorted(ended)
    inside = [m for m in moments if times[0] <= m <= times[-1] or m == moments[-1] >= times[-1]]
    return np.searchsorted(times, np.array(inside)) if inside else none


def find_rounds(stacks: Stacks, replay: Replay) -> Int64Array:
    """Returns the events before which iterations of the loop ended; empty where none is found."""
    blocks = replay.blocks
    born = np.flatnonzero(blocks.birth >= 0)
    used = blocks.stack[born].astype(np.int64)
    events = blocks.birth[born]
    is_python = np.array([has_python_file(file) for file in stacks.frames.file], dtype=np.bool_)
    paths: dict[int, Int64Array] = {}  # the frames in Python, the outermost first
    for stack in np.unique(used).tolist():
        frames = stacks.frame[stacks.start[stack] : stacks.start[stack + 1]].astype(np.int64)
        paths[stack] = frames[is_python[frames]][::-1]
    table = np.full((len(stacks), _MAX_DEPTH), -1, dtype=np.int64)
    for stack, path in paths.items():
        table[stack, : len(path)] = path[:_MAX_DEPTH]
    numbers: dict[tuple[str, str], int] = {}
    names = zip(stacks.frames.file, stacks.frames.function, strict=True)
    functions = np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)
    here = used[table[used, 0] >= 0]
    when = events[table[used, 0] >= 0]
    for depth in range(_MAX_DEPTH):
        frames = table[here, depth]
        here, when, frames = here[frames >= 0], when[frames >= 0], frames[frames >= 0]
        if len(here) < _MIN_ROUNDS:
            break
        # The function with the most allocations below it.
        heaviest = np.bincount(functions[frames]).argmax()
        name = stacks.frames.function[frames[functions[frames] == heaviest][0]]
        if name in _INNER:
            break
        chosen = functions[frames] == heaviest
        here, when, frames = here[chosen], when[chosen], frames[chosen]
        lines = stacks.frames.line[frames]
        returns = np.flatnonzero(lines[1:] < lines[:-1]) + 1
        if len(returns) + 1 >= _MIN_ROUNDS:
            int64_array: Int64Array = when[returns]
            return int64_array
        line = np.bincount(frames).argmax()
        here, when = here[frames == line], when[frames == line]
    return np.empty(0, dtype=np.int64)


# Findings about a device that need a run recorded by ullage: dead blocks at the peak, copies in
# every step, pinned memory, and the memory of a token.


@dataclass(frozen=True, slots=True)
class Recorded:
    """The parts of a record that describe a device. A field is None if the record, perhaps an older
    one, does not have it.

    Attributes:
        dead: the blocks that were live at the peak and not used any more.
        transfers: the copies between host and device that most steps make.
        pinned: the pinned memory of the host.
        tokens: the cache of a program that generates tokens; None also if there is no cache.
        holders: the names of the variables that keep blocks alive.
    """

    dead: DeadWeight | None
    transfers: tuple[Transfers, ...] | None
    pinned: Pinned | None
    tokens: TokenGrowth | None
    holders: Holders


def find_recorded(
    match: Match,
    replay: Replay,
    levels: Levels,
    owners: Owners,
    course: Course,
    *,
    growth: Sequence[Growth],
) -> Recorded:
    """Finds what the record of a run says about one device."""
    return Recorded(
        dead=find_dead_weight(match, replay, levels, owners.category, course),
        transfers=find_transfers(match, replay, course),
        pinned=find_pinned(match, course),
        tokens=find_token_growth(growth, replay, owners.category, course),
        holders=find_holders(match),
    )


@dataclass(frozen=True, slots=True)
class SiteShare:
    """The bytes of one site's blocks at a moment."""

    site: str
    category: Category
    num_blocks: int
    size_bytes: Annotated[int, As("bytes")]


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """One device of a snapshot.

    Attributes:
        index: of the device.
        replay: the life of every block and segment.
        levels: what was in use after each event.
        peak_event: after which the most was allocated; -1 is before the first event.
        owners: of every block; guessed, unless ullage recorded the run.
        owners_at_peak: bytes by category; they sum to the allocated bytes there.
        sites_at_peak: the largest first.
        modules_at_peak: likewise; empty where ullage did not record the run.
        fragmentation: when the most was reserved, or where it ran out of memory.
        course: what the program was doing when.
        site_levels: what each site held after each step.
        growth: what piles up.
        spike: what lives briefly and lifts the peak.
        shortage: the last request that failed, and why; None where none did.
        totals: what ullage recorded of the device itself; None where it did not.
        recorded: what else only its record tells; None likewise.
    """

    index: int
    replay: Replay
    levels: Levels
    peak_event: int
    owners: Owners
    owners_at_peak: Mapping[Category, int]
    sites_at_peak: tuple[SiteShare, ...]
    modules_at_peak: tuple[ModuleShare, ...]
    fragmentation: Fragmentation
    course: Course
    site_levels: SiteLevels
    growth: tuple[Growth, ...]
    spike: Spike | None
    shortage: Shortage | None
    totals: DeviceTotals | None
    recorded: Recorded | None

    @property
    def peak_allocated_bytes(self) -> int:
        """The most bytes in live blocks at once."""
        return int(self.levels.allocated_bytes.max())

    @property
    def peak_reserved_bytes(self) -> int:
        """The most bytes in segments at once."""
        return int(self.levels.reserved_bytes.max())


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    """The report of a snapshot: its devices, those that hold nothing left out.

    `record_remark` is why what ullage recorded in it could not be used; empty where it was, or
    where there is nothing.
    """

    snapshot: Snapshot
    sites: Sites
    devices: tuple[DeviceSnapshot, ...]
    record: Record | None = None
    record_remark: str = ""

    @property
    def contradictions(self) -> tuple[str, ...]:
        """Where the file does not agree with itself."""
        return tuple(text for device in self.devices for text in device.replay.contradictions)


def explain_snapshot(snapshot: Snapshot, record: Record | None = None) -> SnapshotReport:
    """Explains a snapshot, with what ullage recorded in it where that has been read already."""
    sites = find_sites(snapshot.stacks)
    remark = ""
    if record is None and snapshot.record is not None:
        try:
            record = parse_record(snapshot.record)
        except SnapshotError as error:
            remark = f"what ullage recorded in it cannot be used: {error}"
    indices = {index for index, events in enumerate(snapshot.events) if len(events)}
    indices |= set(np.unique(snapshot.segments.device).tolist())
    log = None if record is None else read_log(record)
    devices = tuple(_explain_device(snapshot, sites, index, log) for index in sorted(indices))
    has_events = record is not None and len(record.events) > 0
    if has_events and not all(device.owners.is_known for device in devices):
        remark = "what ullage recorded in it is not of these events"
    return SnapshotReport(snapshot, sites, devices, record, remark)


def _explain_device(
    snapshot: Snapshot, sites: Sites, index: int, log: Log | None
) -> DeviceSnapshot:
    replayed = replay(snapshot, index)
    match = None if log is None else match_record(log.record, log.blocks, replayed, index)
    if log is None or match is None:
        owners = guess_owners(snapshot.stacks, replayed)
        course = guess_course(snapshot, replayed, index)
    else:
        owners, course = log.owners.of_rows(match.row), match.carry(log.course)
    levels = find_levels(replayed)
    peak = levels.peak_event
    is_live = replayed.blocks.is_live(peak)
    oom = _find_out_of_memory(snapshot, index, match.record if match else None)
    moment = levels.peak_reserved_event if oom is None else oom[0]
    site_levels = find_site_levels(replayed, sites, course)
    lay = find_fragmentation(replayed, moment, find_private(snapshot, replayed, index))
    growth = find_growth(replayed, sites, course, site_levels)
    devices = () if match is None else match.record.devices
    totals = next((totals for totals in devices if totals.index == index), None)
    shortage = None
    if oom is not None:
        phase = course.phase[course.region_at(np.array([oom[0]]))[0]]
        is_expandable = snapshot.settings.get("expandable_segments") is True
        # A model that is on its way to the device grows, too.
        is_left = has_no_end(owners.category) | ~np.bool_(owners.is_known)
        leaks = tuple(each for each in growth if not each.blocks or is_left[each.blocks[-1]])
        shortage = find_shortage(
            oom, replayed, lay, leaks, totals,
            is_expandable=is_expandable, is_backward=phase == Phase.BACKWARD,
        )  # fmt: skip
    recorded = None
    if match is not None:
        recorded = find_recorded(match, replayed, levels, owners, course, growth=growth)
    return DeviceSnapshot(
        index=index,
        replay=replayed,
        levels=levels,
        peak_event=peak,
        owners=owners,
        owners_at_peak=sum_by_category(owners, replayed.blocks.size_bytes, is_live),
        sites_at_peak=share_sites(replayed, owners, sites, peak),
        modules_at_peak=share_by_module(owners.modules, is_live, replayed.blocks.size_bytes),
        fragmentation=lay,
        course=course,
        site_levels=site_levels,
        growth=growth,
        spike=find_spike(replayed, levels),
        shortage=shortage,
        totals=totals,
        recorded=recorded,
    )


def share_sites(
    replayed: Replay, owners: Owners, sites: Sites, event: int
) -> tuple[SiteShare, ...]:
    """The bytes of each site's live blocks after an event, the largest first; a site whose blocks
    have several categories is as many rows.
    """
    numbers = np.flatnonzero(replayed.blocks.is_live(event))
    site = sites.of_stack[replayed.blocks.stack[numbers]].astype(np.int64)
    keys, place = np.unique(site * 256 + owners.category[numbers], return_inverse=True)
    sums = np.zeros(len(keys), dtype=np.int64)
    np.add.at(sums, place, replayed.blocks.size_bytes[numbers])
    counts = np.bincount(place, minlength=len(keys))
    categories = tuple(Category)
    rows = [
        SiteShare(sites.names[key // 256], categories[key % 256], int(count), int(size))
        for key, count, size in zip(keys.tolist(), counts, sums, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: -row.size_bytes))


def _find_out_of_memory(
    snapshot: Snapshot, device: int, record: Record | None
) -> tuple[int, int, int] | None:
    """The last request that the program missed: its event, what it asked for, what was free."""
    events = snapshot.events_of(device)
    numbers = np.flatnonzero(events.action == Action.OOM)
    if record is not None and len(numbers):
        kinds = record.events.kind[record.events.device == device]
        last_kinds = kinds[kinds != EventKind.BLOCK][-len(numbers) :]
        done_without = np.flatnonzero(last_kinds == EventKind.DONE_WITHOUT) - len(last_kinds)
        numbers = np.delete(numbers, done_without)
    if not len(numbers):
        return None
    last = int(numbers[-1])
    return last, int(events.size_bytes[last]), int(events.address[last])
