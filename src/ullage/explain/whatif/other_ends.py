"""The other end of each assumption on which the bytes of a trace rest: its requests again, with
addresses in the other order, all work done at once, Inductor's cache warm, or the workspaces of
libraries at their bounds, beside a replay that shows whether it can be replayed at all.

    measure_other_order(snapshot, where)                    `OtherPeaks` of each device
    measure_at_once(snapshot, record, where)
    measure_warm(snapshot, where)
    measure_workspaces(snapshot, record, where)
    measure_by_events(record, where, platform)              of a run without a snapshot
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ullage.explain.owners.dead_weight import find_last_uses
from ullage.explain.owners.matching import Match, match_record
from ullage.explain.reserved import find_kept
from ullage.explain.whatif.replays import ReplayOrder, Where, replay_all
from ullage.explain.whatif.settings import recorded_settings
from ullage.ground.programs.allocator_replay import ATTEMPT, EMPTY_CACHE
from ullage.ground.protocol.run import Platform
from ullage.log.addresses import platform_of
from ullage.log.blocks import Blocks, BoolArray, find_blocks, held_before, pair_events, read_blocks
from ullage.log.bounds import OtherPeaks, Otherwise, Peaks
from ullage.log.model import EventKind, Record, Scratch
from ullage.log.replay import Replay, replay
from ullage.log.requests import Requests, find_requests, in_order
from ullage.log.snapshot import Action, EventTable, Int64Array, Snapshot, Stacks

# Reading more events than these takes longer than a user would wait for it: some seconds.
MAX_EVENTS = 200_000


def replay_variants(
    snapshot: Snapshot,
    device: int,
    recorded: Replay,
    variants: Sequence[Requests],
    where: Where,
) -> list[Peaks]:
    """The peaks of each variant of the requests of a device but the first, the recorded ones; empty
    where these do not come to what was recorded.

    Raises: EnvironmentProblem: torch's own allocator was needed, and could not be asked.
    """
    if len(variants[0].packed):
        return []
    settings, platform = recorded_settings(snapshot.settings), platform_of(snapshot, device)
    peaks = replay_peaks(variants, settings, platform, where)
    reserved = int(held_before(recorded.segments, recorded.num_events).max())
    return peaks[1:] if peaks and peaks[0].reserved_bytes == reserved else []


def replay_peaks(
    variants: Sequence[Requests], settings: str, platform: Platform, where: Where
) -> list[Peaks]:
    """The peaks of requests with addresses in the order of a system; empty where one has none.

    Raises: EnvironmentProblem: torch's own allocator was needed, and could not be asked.
    """
    orders = [ReplayOrder(requests, settings, where.device, platform) for requests in variants]
    peaks = [answer.played.peaks for answer in replay_all(orders, where) if answer.played]
    return peaks if len(peaks) == len(orders) else []


def measure_other_order(snapshot: Snapshot, where: Where) -> tuple[OtherPeaks, ...]:
    """The devices of a trace, each with its peaks had the driver handed out addresses in the order
    of the other system, where a replay under that of the run comes to what was recorded: with
    default settings, without private pools, and where memory did not run short.

    Up to torch 2.12 (`TorchBuild.chooses_by_address`) the allocator takes the lower of two free
    blocks of one size, so the order of the segments decides which of them is split.

    Raises: EnvironmentProblem: torch's own allocator was needed, and could not be asked.
    """
    if recorded_settings(snapshot.settings) or len(snapshot.pools) > 1:
        return ()
    peaks = (
        (device, _peaks_in_other_order(snapshot, device, where))
        for device, events in enumerate(snapshot.events)
        if 0 < len(events) <= MAX_EVENTS
    )
    return tuple(
        OtherPeaks(Otherwise.ADDRESSES, device, (peak,))
        for device, peak in peaks
        if peak is not None
    )


def _peaks_in_other_order(snapshot: Snapshot, device: int, where: Where) -> Peaks | None:
    lives = replay(snapshot, device)
    requests = find_requests(snapshot, lives, device)
    if requests.num_retries or requests.num_failed or len(requests.packed):
        return None
    lived = (lives.segments, lives.blocks)
    recorded = Peaks(*(int(held_before(each, lives.num_events).max()) for each in lived))
    platform = platform_of(snapshot, device)
    own, other = (replay_peaks([requests], "", each, where) for each in (platform, platform.other))
    return other[0] if own == [recorded] and other else None


def measure_at_once(
    snapshot: Snapshot, record: Record | None, where: Where
) -> tuple[OtherPeaks, ...]:
    """The other end of each device that a trace tells of, if it finished all its work at once.

    On the phantom, work is finished when the host has waited for it, so a block that another stream
    has used is reused as late as possible. That gives the upper bound. For the lower bound, the
    requests of the trace are replayed with each block freed where the program released it.

    The record knows which blocks were kept for collectives, which go after their last use here.

    A device on which nothing was held back needs no replay. What a replay says counts where a
    replay of what was recorded comes to what was recorded; elsewhere there is no figure.

    Raises: EnvironmentProblem: the replay failed.
    """
    return tuple(
        _measure_at_once(snapshot, record, device, where)
        for device, events in enumerate(snapshot.events)
        if len(events)
    )


def _measure_at_once(
    snapshot: Snapshot, record: Record | None, device: int, where: Where
) -> OtherPeaks:
    late, events = replay(snapshot, device), snapshot.events_of(device)
    given_back = let_go(late.blocks, events)
    if record is not None:
        given_back = np.minimum(given_back, _last_uses_of_kept(record, late, device))
    before = np.append(0, np.cumsum(events.action == Action.ALLOC))
    is_held = before[late.blocks.death] > before[given_back]
    reserved = held_before(late.segments, late.num_events)
    peak = int(reserved.argmax())
    at_peak = is_held & (given_back < peak) & (late.blocks.death >= peak)
    allocated = int(held_before(late.blocks, late.num_events).max())
    peaks: Sequence[Peaks] = [Peaks(int(reserved[peak]), allocated)]
    if is_held.any():
        once = replace(late, blocks=replace(late.blocks, death=given_back))
        # Empty where a replay of the recorded requests does not come to the recorded peak.
        variants = [find_requests(snapshot, end, device) for end in (late, once)]
        peaks = replay_variants(snapshot, device, late, variants, where)
    held_bytes = int(late.blocks.size_bytes[at_peak].sum())
    number = int(is_held.sum())
    return OtherPeaks(Otherwise.COMPLETION, device, tuple(peaks), number, held_bytes)


def let_go(blocks: Blocks, events: EventTable) -> Int64Array:
    """The event at which the program gave back each block; its death where none says so."""
    rows = np.flatnonzero(np.isin(events.action, (Action.ALLOC, Action.FREE_REQUESTED)))
    is_birth, end = events.action[rows] == Action.ALLOC, len(events)
    birth, request, _ = pair_events(events.address[rows], is_birth, rows, end)
    requested_at: Int64Array = np.full(end + 1, end, dtype=np.int64)
    requested_at[birth] = request
    requested_at[-1] = end  # of what was there before
    return np.minimum(blocks.death, requested_at[blocks.birth])


def _last_uses_of_kept(record: Record, late: Replay, device: int) -> Int64Array:
    """(num_blocks,) the event after the last use of each block that was kept for a collective; of
    the others their death.
    """
    death = late.blocks.death
    match = match_record(record, read_blocks(record), late, device)
    used = None if match is None else find_last_uses(match, late)
    if match is None or used is None or not len(match.recorded):
        return death
    is_kept = find_kept(record, match.recorded)[match.row] & (match.row >= 0)
    return np.where(is_kept, np.maximum(used, late.blocks.birth + 1), death)


# What Inductor remembers is in these; Triton's own tuner times its kernels in every process.
TIMERS: Mapping[str, frozenset[str]] = {
    "torch/_inductor/runtime/triton_heuristics.py": frozenset(
        {"autotune_to_one_config", "coordinate_descent_tuning"}
    ),
    "torch/_inductor/select_algorithm.py": frozenset({"do_autotuning", "benchmark_choices"}),
    "torch/_inductor/fx_passes/pad_mm.py": frozenset({"should_pad_bench"}),
    # It times nothing, but a graph that is known is not made again: patterns, folded constants.
    "torch/_inductor/fx_passes/joint_graph.py": frozenset({"joint_graph_passes"}),
}


def measure_warm(snapshot: Snapshot, where: Where) -> tuple[OtherPeaks, ...]:
    """The warm end of each device on which kernels were timed: the bytes of a run whose compiler's
    cache had known their best settings; without a figure where a replay of what was recorded does
    not come to it.

    Where its cache is cold, Inductor times its kernels before it first launches them, and allocates
    copies of their arguments and a buffer that flushes the L2 cache. The segments that these take
    stay, and later blocks use them, so that the peak of what is reserved differs from that of a run
    with a warm cache. This is the warm end: the requests of the trace again, without those of the
    timing.

    Raises: EnvironmentProblem: the replay could not be made.
    """
    warm = []
    for device, events in enumerate(snapshot.events):
        if not len(events):
            continue
        recorded = replay(snapshot, device)
        is_timing = find_timing(snapshot.stacks, recorded)
        if not is_timing.any():
            continue
        # Without the timing, with asynchronous work done late and at once.
        death, ends = let_go(recorded.blocks, events), [recorded]
        if not np.array_equal(death, recorded.blocks.death):
            ends.append(replace(recorded, blocks=replace(recorded.blocks, death=death)))
        requests = [find_requests(snapshot, end, device) for end in ends]
        variants = [requests[0], *(_without(each, is_timing) for each in requests)]
        peaks = tuple(replay_variants(snapshot, device, recorded, variants, where))
        num_blocks = int(is_timing.sum())
        largest = int(recorded.blocks.size_bytes[is_timing].max())
        warm.append(OtherPeaks(Otherwise.TUNING, device, peaks, num_blocks, largest))
    return tuple(warm)


def find_timing(stacks: Stacks, recorded: Replay) -> BoolArray:
    """Which blocks the timing of kernels allocated and gave back.

    What stays, such as the workspace of cuBLAS, is only allocated later where nothing is timed.
    """
    frames, blocks = stacks.frames, recorded.blocks
    is_timer = np.array(
        [
            any(
                name in names and file.replace("\\", "/").endswith(end)
                for end, names in TIMERS.items()
            )
            for file, name in zip(frames.file, frames.function, strict=True)
        ],
        dtype=bool,
    )
    before = np.append(0, np.cumsum(is_timer[stacks.frame]))
    has_timer = before[stacks.start[1:]] > before[stacks.start[:-1]]
    is_whole = (blocks.birth >= 0) & (blocks.death < recorded.num_events)
    is_timing: BoolArray = has_timer[blocks.stack] & is_whole
    return is_timing


def _without(requests: Requests, is_left_out: BoolArray) -> Requests:
    ops, count = requests.ops, len(requests.sizes)
    numbers = np.concatenate([is_left_out, np.zeros(count - len(is_left_out), dtype=bool)])
    is_kept = (ops < 0) | ~numbers[np.maximum(ops, 0) % count]
    return replace(requests, ops=ops[is_kept], event=requests.event[is_kept])


@dataclass(frozen=True, slots=True)
class _Resized:
    """The workspaces of a device as in its trace.

    Attributes:
        blocks: the block of the trace that each was.
        less_bytes, more_bytes: (num_workspaces,) by how much its bounds differ from the answer.
        at, bytes: before which event another would have been needed, and its upper bound.
    """

    blocks: Int64Array
    less_bytes: Int64Array
    more_bytes: Int64Array
    at: Int64Array
    bytes: Int64Array


def measure_workspaces(snapshot: Snapshot, record: Record, where: Where) -> tuple[OtherPeaks, ...]:
    """Both ends of each device whose libraries were handed workspaces of an assumed size; without a
    figure where a replay of what was recorded does not come to it.

    How much memory an operation of cuDNN, cuFFT, cuSOLVER or cuSPARSE asks for follows a model with
    bounds (such as players/phantom/csrc/answers/cudnn_workspace.c). PyTorch's allocator keeps its
    segments, so the bounds of a workspace are not those of the peak. Here the requests of a trace
    are made again with each workspace at its lower, and with each at its upper bound; one that was
    not needed is then allocated and freed where the operation began, on the default stream.

    Raises: EnvironmentProblem: the replay failed.
    """
    scratch = record.scratch
    if scratch is None:
        return ()
    return tuple(
        _measure_workspaces(snapshot, record, scratch, device, where)
        for device, events in enumerate(snapshot.events)
        if len(events) and (scratch.device == device).any()
    )


def _measure_workspaces(
    snapshot: Snapshot, record: Record, scratch: Scratch, device: int, where: Where
) -> OtherPeaks:
    rows = np.flatnonzero(scratch.device == device)
    recorded = replay(snapshot, device)
    match = match_record(record, read_blocks(record), recorded, device)
    if match is None:
        return ends_of(device, scratch, rows, ())
    resized = find_resized(match, scratch, rows, recorded.blocks.birth >= 0)
    requests = find_requests(snapshot, recorded, device)
    if requests.num_retries or requests.num_failed or not len(resized.blocks) + len(resized.at):
        return ends_of(device, scratch, rows, ())
    variants = [requests, *with_bounds(requests, resized)]
    peaks = replay_variants(snapshot, device, recorded, variants, where)
    return ends_of(device, scratch, rows, peaks)


def ends_of(device: int, scratch: Scratch, rows: Int64Array, peaks: Sequence[Peaks]) -> OtherPeaks:
    """The ends of a device with the workspaces of these rows; unknown without peaks."""
    names = frozenset(scratch.what[row] for row in rows)
    return OtherPeaks(Otherwise.WORKSPACES, device, tuple(peaks), len(rows), names=names)


def find_resized(
    match: Match, scratch: Scratch, rows: Int64Array, is_traced: BoolArray
) -> _Resized:
    """The workspaces of these rows; those of before the trace are left out."""
    lives = match.recorded
    block_of = np.full(len(lives) + 1, -1, dtype=np.int64)
    is_matched = (match.row >= 0) & is_traced
    block_of[match.row[is_matched]] = np.flatnonzero(is_matched)
    places = (scratch.position[rows], scratch.device[rows], scratch.address[rows])
    block = block_of[find_blocks(lives, *places)]
    is_needed = scratch.address[rows] != 0
    here = rows[is_needed & (block >= 0)]
    at = match.event_after(scratch.position[rows[~is_needed]])
    is_inside = scratch.position[rows[~is_needed]] >= match.positions.min(initial=0)
    return _Resized(
        blocks=block[is_needed & (block >= 0)],
        less_bytes=scratch.answered_bytes[here] - scratch.low_bytes[here],
        more_bytes=scratch.high_bytes[here] - scratch.answered_bytes[here],
        at=at[is_inside],
        bytes=scratch.high_bytes[rows[~is_needed]][is_inside],
    )


def with_bounds(requests: Requests, resized: _Resized) -> tuple[Requests, Requests]:
    """The requests with each workspace at its lower, and with each at its upper bound.

    A block that several operations shared keeps what the one that asks for most needs of it.
    """
    less = np.full(len(requests.sizes), np.iinfo(np.int64).max)
    np.minimum.at(less, resized.blocks, resized.less_bytes)
    low = requests.sizes - np.where(less == np.iinfo(np.int64).max, 0, less)
    more = np.zeros(len(requests.sizes), dtype=np.int64)
    np.maximum.at(more, resized.blocks, resized.more_bytes)
    ops, count = requests.ops, len(requests.sizes)
    is_gone = (ops >= 0) & (low[np.maximum(ops, 0) % count] <= 0)
    before, attempts = np.searchsorted(requests.event, resized.at), ATTEMPT + 8 * resized.bytes
    event = requests.event
    return (
        replace(requests, sizes=np.maximum(low, 1), ops=ops[~is_gone], event=event[~is_gone]),
        replace(
            requests,
            sizes=requests.sizes + more,
            ops=np.insert(ops, before, -attempts),
            event=np.insert(event, before, resized.at),
        ),
    )


def measure_by_events(record: Record, where: Where, platform: Platform) -> Record:
    """The record of a run without a snapshot, with the ends of each device for which the replay
    comes to what was recorded: with its workspaces at their bounds, and with addresses in the other
    order.

    The events of its record stand for its requests. They have no streams, pools or settings: where
    the rules of PyTorch's allocator do not come to the recorded peaks, there is no figure. And they
    have bytes of blocks, up to 1 MiB more than was asked for, so there is none of what is
    allocated.
    """
    events = record.events
    if record.first_position or len(events) > MAX_EVENTS or (events.kind != EventKind.BLOCK).any():
        return record
    otherwise: list[OtherPeaks] = []
    for device in np.unique(events.device).tolist():
        variants, scratch = _requests_of(record, device)
        rows = np.flatnonzero(events.device == device)
        allocated = int(events.size_bytes[rows].cumsum().max())
        peaks = replay_peaks(variants, "", platform, where)
        if peaks[:1] != [Peaks(int(events.reserved_bytes[rows].max()), allocated)]:
            continue
        if where.build.chooses_by_address:
            (other,) = replay_peaks(variants[:1], "", platform.other, where)
            same = (Peaks(other.reserved_bytes, allocated),)
            otherwise.append(OtherPeaks(Otherwise.ADDRESSES, device, same))
        if record.scratch is not None and len(scratch):
            bounds = [Peaks(each.reserved_bytes, allocated) for each in peaks[1:]]
            otherwise.append(ends_of(device, record.scratch, scratch, bounds))
    return replace(record, otherwise=tuple(otherwise))


def _requests_of(record: Record, device: int) -> tuple[list[Requests], Int64Array]:
    """The requests of a device, and with its workspaces at their bounds; the rows of these."""
    lives, none = read_blocks(record), np.empty(0, dtype=np.int64)
    blocks = np.flatnonzero(lives.device == device)
    numbers, birth, death = np.arange(len(blocks)), lives.birth[blocks], lives.death[blocks]
    # What is reserved falls where the cache was emptied, before the event that tells.
    rows = np.flatnonzero(record.events.device == device)
    emptied = rows[1:][np.diff(record.events.reserved_bytes[rows]) < 0]
    dies = death < lives.num_events
    ops, event = in_order(
        [
            (np.full(len(emptied), -EMPTY_CACHE), emptied),
            (numbers, birth),
            (len(blocks) + numbers[dies], death[dies]),
        ]
    )
    sizes = lives.size_bytes[blocks]
    requests = Requests(sizes, np.zeros_like(sizes), ops, event, none, none, len(emptied), 0, 0)
    scratch = record.scratch
    if scratch is None or not (scratch.device == device).any():
        return [requests], none
    of_device = np.flatnonzero(scratch.device == device)
    match = Match(record, lives, blocks, event + 1, event, len(record.events), device)
    resized = find_resized(match, scratch, of_device, np.ones(len(blocks), dtype=bool))
    return [requests, *with_bounds(requests, resized)], of_device
