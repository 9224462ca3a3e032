"""Both ends of what is reserved by the order of addresses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ullage.answers.text import render
from ullage.explain.basis import BasisKind
from ullage.explain.program import Program
from ullage.explain.reserved import AddressEnds, find_address_ends
from ullage.explain.run import explain_run
from ullage.facts.gpus.catalog import Gpu
from ullage.ground.protocol.plain import plain
from ullage.log.bounds import OtherPeaks, Otherwise, Peaks
from ullage.log.model import Record
from ullage.verbs.run.text import run_blocks

Make = Callable[..., Record]
# 70 bytes at once, and 70 are reserved.
SCRIPT = "+30 +40 -30 +30 -30"


def in_other_order(reserved: int, allocated: int, device: int = 0) -> tuple[OtherPeaks, ...]:
    return (OtherPeaks(Otherwise.ADDRESSES, device, (Peaks(reserved, allocated),)),)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ((), AddressEnds(70, 70, 70, 70)),
        (in_other_order(60, 70), AddressEnds(60, 70, 70, 70)),
        (in_other_order(90, 65), AddressEnds(70, 90, 65, 70)),
        (in_other_order(90, 75, device=1), AddressEnds(70, 70, 70, 70)),
    ],
)
def test_the_ends_are_those_of_both_orders(
    make_record: Make, other: tuple[OtherPeaks, ...], expected: AddressEnds
) -> None:
    record = replace(make_record(SCRIPT), otherwise=other)
    assert find_address_ends(record, record.devices[0]) == expected


@pytest.mark.parametrize("other", [60, 90])
def test_the_report_states_them_and_the_verdict_uses_the_upper_one(
    make_record: Make, program: Program, small_gpu: Gpu, other: int
) -> None:
    record = replace(make_record(SCRIPT), otherwise=in_other_order(other, 70))
    report = explain_run(
        [(record, None)], program=program, torch="2.11.0", gpu=small_gpu, is_unlimited=False
    )
    (device,) = report.devices
    low, high = sorted((70, other))
    assert device.peak_used_bytes == high + 120
    assert device.headroom.high_bytes == 1000 - 80 - low
    (assumption,) = report.allocator_basis.assumptions
    assert report.allocator_basis.kind is BasisKind.ASSUMED
    assert (assumption.low_bytes, assumption.high_bytes) == (low, high)
    shown = plain(report)["devices"][0]
    assert (shown["peak_reserved_low_bytes"], shown["peak_reserved_high_bytes"]) == (low, high)
    assert f"order of addresses -{high - low} B" in render(run_blocks(report), full=True)


@pytest.mark.parametrize("other", [66, 75])
def test_what_is_allocated_has_the_ends_of_both_orders_too(
    make_record: Make, program: Program, small_gpu: Gpu, other: int
) -> None:
    record = replace(make_record(SCRIPT), otherwise=in_other_order(70, other))
    report = explain_run(
        [(record, None)], program=program, torch="2.11.0", gpu=small_gpu, is_unlimited=False
    )
    low, high = sorted((70, other))
    shown = plain(report)["devices"][0]
    assert (shown["peak_allocated_low_bytes"], shown["peak_allocated_high_bytes"]) == (low, high)
    (assumption,) = report.allocator_basis.assumptions
    assert (assumption.low_bytes, assumption.high_bytes) == (low, high)
    assert report.devices[0].peak_used_bytes == 70 + 120, "the verdict goes by what is reserved"


def test_both_assumptions_add_up(make_record: Make, program: Program, small_gpu: Gpu) -> None:
    record = make_record(SCRIPT, num_not_yet=1)
    once = OtherPeaks(Otherwise.COMPLETION, 0, (Peaks(55, 70),), 1, 10)
    record = replace(record, otherwise=(*in_other_order(90, 70), once))
    report = explain_run(
        [(record, None)], program=program, torch="2.11.0", gpu=small_gpu, is_unlimited=False
    )
    (device,) = report.devices
    assert (device.reserved.low_bytes, device.reserved.high_bytes) == (55, 90)
