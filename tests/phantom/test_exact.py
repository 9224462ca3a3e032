"""What a run says of memory is what torch's allocator did: counted twice, replayed, and reproduced.

The oracle is written here, apart from the package: it replays torch's own trace of segments and
blocks, and the allocator's events as the record has them, and holds both against the final state
that torch reports.
"""

from __future__ import annotations

import bisect
import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ullage.log.model import EventKind, Record

pytestmark = [pytest.mark.phantom, pytest.mark.fresh]
RunProgram = Callable[..., Any]

MIB = 2**20
EXPANDABLE = (
    "--alloc-conf",
    "expandable_segments:True",
)
GPT2 = "gpt2/gpt2_check.py"
CASES = {
    "peaks": ("peaks.py", ()),
    "peaks, expandable": ("peaks.py", EXPANDABLE),
    "gpt2": (GPT2, ()),
    "gpt2, expandable": (GPT2, EXPANDABLE),
    "out of memory": ("memory_api.py", ()),
}


class Ranges:
    """Disjoint ranges of addresses; what overlaps another, or is taken out unknown, is an error."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.sizes: dict[int, int] = {}

    def add(self, start: int, size: int) -> None:
        """A range that touches no other."""
        place = bisect.bisect_right(self.starts, start)
        if place and self.starts[place - 1] + self.sizes[self.starts[place - 1]] > start:
            raise ValueError(f"{start:#x} lies within {self.starts[place - 1]:#x}")
        if place < len(self.starts) and start + size > self.starts[place]:
            raise ValueError(f"{start:#x} reaches into {self.starts[place]:#x}")
        self.starts.insert(place, start)
        self.sizes[start] = size

    def remove(self, start: int, size: int) -> None:
        """A whole range."""
        if self.sizes.get(start) != size:
            raise ValueError(f"{start:#x} of {size} is not there: {self.sizes.get(start)}")
        del self.sizes[start]
        self.starts.remove(start)

    def cut(self, start: int, size: int) -> None:
        """A part of ranges: they are merged first, and what is left of them stays."""
        merged = {s: n for s, n in self.merged() if s <= start and start + size <= s + n}
        if not merged:
            raise ValueError(f"{start:#x} of {size} is not mapped")
        ((whole, length),) = merged.items()
        for inner in [s for s in self.starts if whole <= s < whole + length]:
            self.remove(inner, self.sizes[inner])
        for left, right in ((whole, start), (start + size, whole + length)):
            if left < right:
                self.add(left, right - left)

    def merged(self) -> list[tuple[int, int]]:
        """(start, size) of ranges, those that touch as one."""
        found: list[tuple[int, int]] = []
        for start in self.starts:
            if found and found[-1][0] + found[-1][1] == start:
                found[-1] = (found[-1][0], found[-1][1] + self.sizes[start])
            else:
                found.append((start, self.sizes[start]))
        return found

    def hold(self, start: int, size: int) -> bool:
        """Whether a range lies within these, taken together where they touch."""
        end, place = start, bisect.bisect_right(self.starts, start) - 1
        while 0 <= place < len(self.starts) and self.starts[place] <= end < start + size:
            end = max(end, self.starts[place] + self.sizes[self.starts[place]])
            place += 1
        return end >= start + size

    @property
    def total(self) -> int:
        """Bytes of all ranges."""
        return sum(self.sizes.values())


def replay_trace(
    trace: list[dict[str, Any]],
) -> tuple[Ranges, Ranges, list[tuple[int, int, int]]]:
    """Segments and live blocks (as requested) at the end; per event (address, sign, reserved)."""
    segments, blocks, sequence = Ranges(), Ranges(), []
    for entry in trace:
        action, address, size = entry["action"], entry.get("addr", 0), entry["size"]
        if action in ("segment_alloc", "segment_map"):
            segments.add(address, size)
        elif action == "segment_free":
            segments.remove(address, size)
        elif action == "segment_unmap":
            segments.cut(address, size)
        elif action == "alloc":
            if not segments.hold(address, size):
                raise ValueError(f"block {address:#x} of {size} lies in no segment")
            blocks.add(address, size)
            sequence.append((address, 1, segments.total))
        elif action == "free_completed":
            blocks.remove(address, size)
            sequence.append((address, -1, segments.total))
    return segments, blocks, sequence


def check_snapshot(snapshot: dict[str, Any]) -> int:
    """Holds the trace against the final state; the number of blocks given and taken."""
    num_events = 0
    for device, trace in enumerate(snapshot["device_traces"]):
        segments, blocks, sequence = replay_trace(trace)
        mine = [s for s in snapshot["segments"] if s["device"] == device]
        final = Ranges()
        for segment in mine:
            final.add(segment["address"], segment["total_size"])
        if final.merged() != segments.merged():
            raise ValueError("the replayed segments are not those that torch reports")
        live = {
            block["address"]: block["requested_size"]
            for segment in mine for block in segment["blocks"] if block["state"] != "inactive"
        }  # fmt: skip
        if live != blocks.sizes:
            raise ValueError("the replayed blocks are not those that torch reports")
        num_events += len(sequence)
    return num_events


def check_record(record: Record, snapshot: dict[str, Any]) -> None:
    """Holds the record's events, with whole blocks, against torch's trace and final state."""
    events = record.events
    for device, trace in enumerate(snapshot["device_traces"]):
        rows = np.flatnonzero((events.device == device) & (events.kind == EventKind.BLOCK))
        sizes, addresses = events.size_bytes[rows].tolist(), events.address[rows].tolist()
        blocks, allocated = Ranges(), []
        for address, size in zip(addresses, sizes, strict=True):
            (blocks.add if size > 0 else blocks.remove)(address, abs(size))
            allocated.append(blocks.total if len(allocated) % 64 == 0 else allocated[-1] + size)
        reserved = events.reserved_bytes[rows].tolist()
        free = [held - used for held, used in zip(reserved, allocated, strict=True)]
        if min(free, default=0) < 0:
            raise ValueError("more is allocated than reserved")
        _, _, sequence = replay_trace(trace)
        signs = [1 if size > 0 else -1 for size in sizes]
        if list(zip(addresses, signs, reserved, strict=True)) != sequence:
            raise ValueError("the record's events are not those of torch's trace")
        live = {
            block["address"]: block["size"]
            for segment in snapshot["segments"] if segment["device"] == device
            for block in segment["blocks"] if block["state"] != "inactive"
        }  # fmt: skip
        if live != blocks.sizes:
            raise ValueError("the blocks at the record's end are not those that torch reports")
        (totals,) = [totals for totals in record.devices if totals.index == device]
        if max(allocated, default=0) != totals.peak_allocated_bytes:
            raise ValueError("the highest allocated bytes are not the peak")


def canonical(record: Record) -> list[tuple[int, int, int, int]]:
    """The events' sizes, with each run of consecutive frees in a fixed order."""
    events = record.events
    rows = list(
        zip(
            events.kind.tolist(),
            events.device.tolist(),
            events.size_bytes.tolist(),
            events.reserved_bytes.tolist(),
            strict=True,
        )
    )
    found: list[tuple[int, int, int, int]] = []
    run: list[tuple[int, int, int, int]] = []
    for row in rows:
        if row[0] == EventKind.BLOCK and row[2] < 0:
            run.append(row)
        else:
            found += [*sorted(run), row]
            run = []
    return found + sorted(run)


@pytest.mark.slow(
    but=(
        "out of memory",
        "peaks",
    )
)
@pytest.mark.parametrize("case", CASES)
def test_blocks_never_overlap_and_the_trace_ends_in_the_state_that_torch_reports(
    run_program: RunProgram, case: str
) -> None:
    name, options = CASES[case]
    snapshot = run_program(name, options=options).snapshot
    assert check_snapshot(snapshot) > 1


@pytest.mark.parametrize("case", CASES)
def test_the_records_events_are_those_of_the_trace_and_allocated_and_free_make_reserved(
    run_program: RunProgram, case: str
) -> None:
    name, options = CASES[case]
    outcome = run_program(name, options=options)
    assert outcome.record.first_position == 0
    check_record(outcome.record, outcome.snapshot)


def tamper_overlap(trace: list[dict[str, Any]]) -> None:
    """A block that begins where another one is."""
    blocks = [entry for entry in trace if entry["action"] == "alloc"]
    blocks[1]["addr"] = blocks[0]["addr"]


def tamper_lost_free(trace: list[dict[str, Any]]) -> None:
    """A block that is never taken back."""
    trace.remove(next(entry for entry in trace if entry["action"] == "free_completed"))


def tamper_lost_segment(trace: list[dict[str, Any]]) -> None:
    """Blocks that lie nowhere."""
    trace.remove(next(entry for entry in trace if entry["action"] == "segment_alloc"))


def tamper_size(trace: list[dict[str, Any]]) -> None:
    """A segment larger than it is."""
    next(entry for entry in trace if entry["action"] == "segment_alloc")["size"] += 2 * MIB


TAMPERS = (tamper_overlap, tamper_lost_free, tamper_lost_segment, tamper_size)


@pytest.mark.parametrize("tamper", TAMPERS)
def test_the_checker_sees_a_trace_that_was_tampered_with(
    run_program: RunProgram, tamper: Callable[[list[dict[str, Any]]], None]
) -> None:
    snapshot = copy.deepcopy(run_program("peaks.py").snapshot)
    tamper(snapshot["device_traces"][0])
    with pytest.raises(ValueError):
        check_snapshot(snapshot)


def test_the_checker_sees_a_record_that_was_tampered_with(run_program: RunProgram) -> None:
    outcome = run_program("peaks.py")
    events = outcome.record.events
    reserved = events.reserved_bytes.copy()
    reserved[len(reserved) // 2] += 1
    changed = replace(events, reserved_bytes=reserved)
    with pytest.raises(ValueError):
        check_record(replace(outcome.record, events=changed), outcome.snapshot)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id=""),
        pytest.param(EXPANDABLE, id="expandable", marks=pytest.mark.nightly),
    ],
)
def test_two_runs_give_the_same_events(run_program: RunProgram, options: tuple[str, ...]) -> None:
    first = canonical(run_program(GPT2, options=options).record)
    second = canonical(run_program(GPT2, options=options, turn=1).record)
    assert len(first) > 1000
    assert first == second


@pytest.mark.parametrize("options", [(), EXPANDABLE], ids=["", "expandable"])
def test_peaks_are_what_torch_says_inside_a_program_that_resets_none(
    run_program: RunProgram, options: tuple[str, ...]
) -> None:
    outcome = run_program("peaks.py", options=options)
    said = outcome.printed
    assert said == {name: outcome.device[name] for name in said}
    assert said["peak_allocated_bytes"] > 20 * MIB


@pytest.mark.parametrize("case", CASES)
def test_owners_at_the_peak_sum_to_the_peak(run_program: RunProgram, case: str) -> None:
    name, options = CASES[case]
    device = run_program(name, options=options).device
    assert sum(device["at_peak"].values()) == device["peak_allocated_bytes"]
    ledger = device["ledger"]
    parts = ("cache_bytes", "context_bytes", "non_torch_bytes", "free_bytes")
    whole = sum(ledger["owners"].values()) + sum(ledger[part] for part in parts)
    assert whole == ledger["total_bytes"] == device["total_bytes"]


@pytest.mark.parametrize(
    ("options", "allocated_mib", "reserved_mib"),
    [((), 8241.66, 9748), (EXPANDABLE, 8224.35, 9070)],
    ids=["", "expandable"],
)
def test_gpt2_takes_what_it_takes_on_a_real_gpu_of_capability_9_0(
    run_program: RunProgram,
    torch_version: str,
    options: tuple[str, ...],
    allocated_mib: float,
    reserved_mib: float,
) -> None:
    if torch_version.partition("+")[0] != "2.15.0":
        pytest.skip(f"the figures are those of torch 2.15.0, and this is {torch_version}")
    device = run_program(GPT2, options=options).device
    assert round(device["peak_allocated_bytes"] / MIB, 2) == allocated_mib
    assert device["peak_reserved_bytes"] / MIB == reserved_mib
