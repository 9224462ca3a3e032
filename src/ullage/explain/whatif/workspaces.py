"""The bytes of a run whose closed libraries had needed the least or the most scratch memory.

How much memory an operation of cuDNN, cuFFT, cuSOLVER or cuSPARSE asks for follows a model with
bounds (such as players/phantom/csrc/answers/cudnn_workspace.c). PyTorch's allocator keeps its
segments, so the bounds of a workspace are not those of the peak. Here the requests of a trace are
made again with each workspace at its lower, and with each at its upper bound; one that was not
needed is then allocated and freed where the operation began, on the default stream.

    measure_workspaces(read_snapshot(path), record, where)       `OtherPeaks` of each device
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ullage.explain.owners.matching import Match, match_record
from ullage.explain.whatif.replays import Where
from ullage.explain.whatif.variants import replay_variants
from ullage.ground.programs.allocator_replay import ATTEMPT
from ullage.log.blocks import BoolArray, find_blocks, read_blocks
from ullage.log.bounds import OtherPeaks, Otherwise, Peaks
from ullage.log.model import Record, Scratch
from ullage.log.replay import replay
from ullage.log.requests import Requests, find_requests
from ullage.log.snapshot import Int64Array, Snapshot


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

    Raises: EnvironmentProblem: the replay failed.
    """
    scratch = record.scratch
    if scratch is None:
        return ()
    return tuple(
        _measure(snapshot, record, scratch, device, where)
        for device, events in enumerate(snapshot.events)
        if len(events) and (scratch.device == device).any()
    )


def _measure(
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
