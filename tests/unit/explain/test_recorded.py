"""What only a record tells: by hand; sizes in MiB."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ullage.explain.moments.levels import find_levels
from ullage.explain.moments.series import find_moments, sum_at_moments
from ullage.explain.owners.recorded import Recorded
from ullage.explain.reconcile import reconcile
from ullage.explain.rules.case import make_case
from ullage.explain.snapshot import SnapshotReport
from ullage.units import MIB

ReportOf = Callable[..., SnapshotReport]
STEP = "F x#+64 f B x#- b O o S"


def repeat(pattern: str, count: int) -> str:
    """A pattern repeated, # standing for the number of the turn."""
    return " ".join(pattern.replace("#", str(number)) for number in range(count))


def recorded(report: SnapshotReport) -> Recorded:
    """What the record of the only device tells."""
    (device,) = report.devices
    assert device.recorded is not None
    return device.recorded


def test_a_record_of_before_says_nothing_of_uses(report_of: ReportOf, file_of: ReportOf) -> None:
    assert recorded(report_of("[64 a+4 b+8", has_record=True)).dead is None
    file: Any = file_of("[64 a+4", has_record=True)
    del file["ullage"]["copies"]
    assert recorded(report_of("", **file)).transfers is None


def test_what_was_freed_after_its_last_use_was_dead(report_of: ReportOf) -> None:
    script = "[512 a+90 a~ b+1 c+1 d+1 e+100 e~ a- e- S b~ c~ d~ S S"
    dead = recorded(report_of(script, has_record=True)).dead
    assert dead is not None
    assert dead.blocks.tolist() == [0]
    assert dead.size_bytes == 90 * MIB
    # Without it from its last use on: 1 + 1 + 1 + 100, which is more than the 90 before.
    assert dead.lower_peak_bytes == 103 * MIB


def test_what_the_next_operations_let_go_of_was_not_dead(report_of: ReportOf) -> None:
    dead = recorded(report_of("[512 a+90 a~ b+1 e+100 e~ a- e- S b~ S S", has_record=True)).dead
    assert dead is not None and not len(dead.blocks)


def test_copies_are_told_by_kind_and_step(report_of: ReportOf) -> None:
    script = "[4096 w+300 w< " + repeat("i#+3 i#<p j#+2 j#< j#< " + STEP + " i#- j#-", 5)
    transfers = recorded(report_of(script, has_record=True)).transfers
    assert transfers is not None
    found = [(one.is_pinned, one.step_bytes // MIB, one.num_copies) for one in transfers]
    # Not the weights, which come with the first step, and not the first step.
    assert found == [(False, 4, 8), (True, 3, 4)]
    assert not any(one.is_waited_for or one.is_beside for one in transfers)


def test_pinned_memory_is_told_by_step(report_of: ReportOf) -> None:
    script = "[512 ^10 " + repeat(STEP + " ^2#", 3)
    pinned = recorded(report_of(script, has_record=True)).pinned
    assert pinned is not None
    # No event of the allocator tells what is pinned right before a step's end from right after.
    assert (pinned.size_bytes // MIB)[0] in (10, 20)
    assert (pinned.size_bytes // MIB)[-1] == 22


def test_a_device_adds_up_and_what_is_not_known_is_none(report_of: ReportOf) -> None:
    (known,) = report_of("[512 a+90", has_record=True).devices
    lines = reconcile(known.fragmentation, known.totals)
    assert lines.reserved_bytes == known.peak_reserved_bytes == 512 * MIB
    assert lines.process_bytes == (512 + 96) * MIB
    assert lines.total_bytes == lines.process_bytes + lines.free_bytes  # type: ignore[operator]
    (foreign,) = report_of("[512 a+90").devices
    lines = reconcile(foreign.fragmentation, foreign.totals)
    assert lines.reserved_bytes == 512 * MIB
    assert {lines.context_bytes, lines.library_bytes, lines.other_process_bytes,
            lines.free_bytes, lines.total_bytes, lines.process_bytes} == {None}  # fmt: skip


def test_series_are_what_is_live_at_each_moment(report_of: ReportOf) -> None:
    report = report_of("[4096 " + repeat("a#+3 b#+5 a#- c#+7 b#-", 300) + " z+90 z-")
    (device,) = report.devices
    levels = find_levels(device.replay)
    moments = find_moments(levels)
    assert len(moments) <= 256
    assert device.peak_event in moments
    group = np.arange(len(device.replay.blocks), dtype=np.int64) % 3
    found = sum_at_moments(device.replay, moments, group, 3)
    for column, event in enumerate(moments.tolist()):
        live = device.replay.blocks.is_live(event)
        sums = [int(device.replay.blocks.size_bytes[live & (group == g)].sum()) for g in range(3)]
        assert found[:, column].tolist() == sums
        assert sum(sums) == levels.allocated_bytes[event + 1]


def test_a_name_for_what_is_held_is_found(report_of: ReportOf, file_of: ReportOf) -> None:
    file: Any = file_of("[512 a+90 b+3 c+4", has_record=True)
    address = file["device_traces"][0][1]["addr"]
    file["ullage"]["holders"] = [[3, 0, address, "outputs[17] in train()"]]
    file["ullage"]["graphs"] = [[3, 7, "loss in train()"], [3, 90, "total in train()"]]
    report = report_of("", **file)
    holders = recorded(report).holders
    assert holders.name([0, 1]) == "outputs[...] in train()"
    assert holders.name([1]) is None
    assert holders.graph is not None and holders.graph.chain == "total in train()"
    case = make_case(report, report.devices[0])
    assert case.list_holders(np.array([0])) == ("held by outputs[...] in train()",)
