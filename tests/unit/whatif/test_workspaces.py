"""What is replayed with the workspaces of libraries at their bounds; the replays themselves are in
tests/phantom/test_workspaces.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ullage.explain.whatif.other_ends import measure_workspaces
from ullage.explain.whatif.replays import Where
from ullage.ground.programs.allocator_replay import ATTEMPT
from ullage.ground.units import MIB
from ullage.log.bounds import OtherPeaks, Otherwise, Peaks
from ullage.log.model import Record, Scratch
from ullage.log.snapshot import Snapshot
from ullage.players.phantom.device import choose_device
from ullage.players.phantom.torch_build import TorchBuild

BUILD = TorchBuild("2.15.0", "13.2", Path(), {}, frozenset(), frozenset())
NOWHERE = Where("no such python", BUILD, choose_device(None))
NAME = "cuDNN convolution forward workspace"
TRACE, SCRIPT = "+a +b -a +c -b", f"+{MIB} +{MIB} -{MIB} +{MIB} -{MIB}"
NOTHING = OtherPeaks(Otherwise.WORKSPACES, 0, (), 1, names=frozenset({NAME}))
MakeSnapshot = Callable[..., Snapshot]
MakeRecord = Callable[..., Record]


def with_scratch(record: Record, *rows: tuple[int, int, int, int, int]) -> Record:
    """The record with workspaces: (event that gave the block out, or -1; position, low, answered
    and high bytes).
    """
    columns = np.array(rows, dtype=np.int64).T
    address = np.where(columns[0] < 0, 0, record.events.address[columns[0]])
    device = np.zeros(len(rows), dtype=np.int64)
    scratch = Scratch(columns[1], device, address, *columns[2:], (NAME,) * len(rows))
    return replace(record, scratch=scratch)


def test_a_workspace_takes_its_bounds_and_others_what_they_took(
    make_snapshot: MakeSnapshot, make_record: MakeRecord, sent: dict[str, Any]
) -> None:
    record = with_scratch(make_record(SCRIPT), (1, 2, MIB // 4, MIB, 3 * MIB))
    sent["peaks"] = (6, 3, 9)
    (ends,) = measure_workspaces(make_snapshot(TRACE), record, NOWHERE)
    peaks = (Peaks(3 * MIB, 2 * MIB), Peaks(9 * MIB, 8 * MIB))
    assert ends == replace(NOTHING, peaks=peaks)
    recorded, low, high = sent["requests"]
    assert recorded.sizes.tolist() == [MIB, MIB, MIB]
    assert low.sizes.tolist() == [MIB, MIB // 4, MIB]
    assert high.sizes.tolist() == [MIB, 3 * MIB, MIB]
    assert recorded.ops.tolist() == low.ops.tolist() == high.ops.tolist()


def test_a_workspace_that_could_be_none_is_left_out(
    make_snapshot: MakeSnapshot, make_record: MakeRecord, sent: dict[str, Any]
) -> None:
    record = with_scratch(make_record(SCRIPT), (1, 2, 0, MIB, MIB + 1))
    measure_workspaces(make_snapshot(TRACE), record, NOWHERE)
    recorded, low, _ = sent["requests"]
    assert recorded.ops.tolist() == [0, 1, 3, 2, 4]
    assert low.ops.tolist() == [0, 3, 2] and len(low.event) == 3


def test_of_a_block_that_operations_share_the_largest_need_counts(
    make_snapshot: MakeSnapshot, make_record: MakeRecord, sent: dict[str, Any]
) -> None:
    rows = (1, 2, 0, MIB, MIB), (1, 2, MIB // 2, MIB, 2 * MIB)
    measure_workspaces(make_snapshot(TRACE), with_scratch(make_record(SCRIPT), *rows), NOWHERE)
    _, low, high = sent["requests"]
    assert (low.sizes[1], high.sizes[1]) == (MIB // 2, 2 * MIB)


def test_one_that_was_not_needed_comes_and_goes_where_its_operation_began(
    make_snapshot: MakeSnapshot, make_record: MakeRecord, sent: dict[str, Any]
) -> None:
    record = with_scratch(make_record(SCRIPT), (-1, 3, 0, 0, 5 * MIB))
    measure_workspaces(make_snapshot(TRACE), record, NOWHERE)
    _, low, high = sent["requests"]
    assert low.ops.tolist() == [0, 1, 3, 2, 4]
    assert high.ops.tolist() == [0, 1, 3, -(ATTEMPT + 8 * 5 * MIB), 2, 4]
    assert len(high.event) == 6


def test_a_replay_that_does_not_reproduce_the_recording_gives_no_figure(
    make_snapshot: MakeSnapshot, make_record: MakeRecord, sent: dict[str, Any]
) -> None:
    sent["peaks"] = (7, 4, 9)
    record = with_scratch(make_record(SCRIPT), (1, 2, 0, MIB, 2 * MIB))
    assert measure_workspaces(make_snapshot(TRACE), record, NOWHERE) == (NOTHING,)


@pytest.mark.parametrize("trace", ["+a +b -b", "!7 +a +b -a +c -b"])
def test_another_trace_or_one_that_ran_short_is_not_replayed(
    make_snapshot: MakeSnapshot, make_record: MakeRecord, trace: str
) -> None:
    script = SCRIPT if "!" in trace else f"+{MIB} +{2 * MIB} -{2 * MIB} +{MIB} -{MIB}"
    record = with_scratch(make_record(script), (1, 2, 0, MIB, 2 * MIB))
    assert measure_workspaces(make_snapshot(trace), record, NOWHERE) == (NOTHING,)


def test_without_workspaces_of_an_assumed_size_nothing_is_replayed(
    make_snapshot: MakeSnapshot, make_record: MakeRecord
) -> None:
    assert measure_workspaces(make_snapshot(TRACE), make_record(SCRIPT), NOWHERE) == ()
