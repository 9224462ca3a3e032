"""What a run without a snapshot would have reserved otherwise, against the rules in Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.accuracy.address_policy import POLICIES
from benchmarks.accuracy.address_replay import Allocator
from tests.unit.whatif.test_addresses import EMPTY_CACHE, random_requests

from ullage.explain.reserved import find_workspaces
from ullage.explain.whatif.other_ends import measure_by_events
from ullage.explain.whatif.replays import Where
from ullage.ground.protocol.run import Platform
from ullage.ground.units import MIB
from ullage.log.bounds import Otherwise
from ullage.log.model import EventKind, Events, Record, Scratch
from ullage.players.phantom.device import choose_device
from ullage.players.phantom.program import UserProgram
from ullage.players.phantom.torch_build import TorchBuild
from ullage.search.runs.job import Job, make_options
from ullage.search.runs.one import _with_both_ends
from ullage.verbs.run.options import RunOptions

MakeRecord = Callable[..., Record]
BUILD = TorchBuild("2.6.0", "12.4", Path(), {}, frozenset(), frozenset())
NOWHERE = Where("no such python", BUILD, choose_device(None))
NAME = "cuDNN convolution forward workspace"
# Of every seventh block; and of one that was not needed, before the operation at this place.
LESS, MORE, NOT_NEEDED, AT = MIB // 2, 6 * MIB, 13 * MIB, 40


def play(sizes: list[int], ops: list[int], platform: Platform, attempt: int = 0) -> list[list[int]]:
    """Address, bytes given out or back, and what is reserved, of each event."""
    allocator, where, events = Allocator(POLICIES[platform]()), {}, []
    for place, op in enumerate(ops):
        if place == AT and attempt:
            allocator.release(allocator.allocate(attempt, 0, 0))
        if op == EMPTY_CACHE:
            allocator.empty_cache()
            continue
        address = where[op - len(sizes)] if op >= len(sizes) else 0
        sign = -1 if op >= len(sizes) else 1
        if sign > 0:
            address = where[op] = allocator.allocate(sizes[op], 0, 0)
        size = allocator.blocks[address].size
        if sign < 0:
            allocator.release(address)
        events.append([address, sign * size, sum(allocator.segments), allocator.peak_bytes])
    return events


def record_of(record: Record, events: list[list[int]], position: int) -> Record:
    """A record of these events, of which every seventh block that was given out is a workspace."""
    address, size, reserved, _ = np.array(events, dtype=np.int64).T
    zeros = np.zeros(len(events), dtype=np.uint8)
    kind = np.full(len(events), EventKind.BLOCK, dtype=np.uint8)
    none = np.full(len(events), -1, dtype=np.int32)
    columns = Events(address, size, reserved, zeros, kind, none, zeros.astype(bool))
    rows = np.flatnonzero(size > 0)[::7]
    rows = rows[size[rows] > MIB]
    column = [np.append(size[rows] + more, end) for more, end in
              ((-LESS, 0), (0, 0), (MORE, NOT_NEEDED))]  # fmt: skip
    places = np.append(rows + 1, position), np.zeros(len(rows) + 1, dtype=np.int64)
    scratch = Scratch(*places, np.append(address[rows], 0), *column, (NAME,) * (len(rows) + 1))
    return replace(record, events=columns, scratch=scratch)


# A cache that is emptied without giving anything back leaves no event; here each gives something.
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("empties", [False, True])
def test_the_ends_are_those_of_the_rules_with_other_sizes(
    make_record: MakeRecord, seed: int, *, empties: bool
) -> None:
    asked, ops = random_requests(seed, empties=empties)
    events = play(asked, ops, Platform.LINUX)
    # What an event tells of a block is its size, which is what is asked for again.
    sizes = [size for _, size, _, _ in events if size > 0]
    shift = {7 * n for n in range(len(sizes)) if 7 * n < len(sizes) and sizes[7 * n] > MIB}
    low = [size - LESS * (n in shift) for n, size in enumerate(sizes)]
    high = [size + MORE * (n in shift) for n, size in enumerate(sizes)]
    position = AT - ops[:AT].count(EMPTY_CACHE)
    record = record_of(make_record("+1 -1"), events, position)
    found = measure_by_events(record, NOWHERE, Platform.LINUX)
    peaks = [play(*what)[-1][-1] for what in
             ((low, ops, Platform.LINUX), (high, ops, Platform.LINUX, NOT_NEEDED))]  # fmt: skip
    (order, ends) = found.otherwise
    assert (order.what, ends.what) == (Otherwise.ADDRESSES, Otherwise.WORKSPACES)
    assert sorted(each.reserved_bytes for each in ends.peaks) == sorted(peaks)
    (other,) = order.peaks
    assert (order.device, other.reserved_bytes) == (0, play(sizes, ops, Platform.WINDOWS)[-1][-1])
    # Blocks are not what was asked for, so nothing is said of what is allocated.
    assert other.allocated_bytes == np.cumsum([size for _, size, _, _ in events]).max()
    assert {each.allocated_bytes for each in ends.peaks} == {other.allocated_bytes}


def test_without_streams_or_settings_that_explain_the_peaks_there_is_no_figure(
    make_record: MakeRecord,
) -> None:
    events = play(*random_requests(3, empties=False), Platform.LINUX)
    record = record_of(make_record("+1 -1"), events, AT)
    other = replace(record.events, reserved_bytes=record.events.reserved_bytes + 2 * MIB)
    found = measure_by_events(replace(record, events=other), NOWHERE, Platform.LINUX)
    assert found.otherwise == ()
    assert len(measure_by_events(record, NOWHERE, Platform.LINUX).otherwise) == 2


def test_a_run_that_keeps_no_snapshot_has_them(make_record: MakeRecord) -> None:
    events = play(*random_requests(3, empties=False), Platform.LINUX)
    record = record_of(make_record("+1 -1"), events, AT)
    program = UserProgram("no such python", (), ())
    job = Job(program, choose_device(None), BUILD, make_options(RunOptions([])))
    whole = _with_both_ends(record, None, job)
    assert whole.otherwise == measure_by_events(record, NOWHERE, Platform.LINUX).otherwise
    ends = find_workspaces(whole, whole.devices[0])
    assert ends.reserved_low_bytes < ends.reserved_high_bytes
