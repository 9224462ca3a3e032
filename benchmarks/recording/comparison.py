"""Whether a record says the same as a run of the same program; see docs/results/record.md.

compare(run, record).differences        # (): the same
"""

from __future__ import annotations

import array
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.recording.bare import Done
from ullage.log.blocks import find_blocks, read_blocks
from ullage.log.model import Record
from ullage.log.reader import read_record

Row = tuple[Any, ...]
_FREES = ("free_requested", "free_completed")
_TOTALS = ("num_allocs", "num_segments", "num_ooms", "num_alloc_retries")
_PEAKS = ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes")
_CACHE, _ACTIVATION = "kv_cache", "activation"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is the same and what is not.

    Attributes:
        num_events: of the run.
        num_reordered: frees that stand elsewhere among those around them.
        num_reordered_again: the same of a second run; None: there was none.
        by_use_bytes: at the peak, of what a run calls a cache by its use alone.
        unequal: what differs: a name of the table's columns, and how.
    """

    num_events: int
    num_reordered: int
    by_use_bytes: int
    unequal: tuple[tuple[str, str], ...]
    num_reordered_again: int | None = None

    @property
    def differences(self) -> tuple[str, ...]:
        """In words."""
        return tuple(f"{name}: {how}" for name, how in self.unequal)

    def word(self, name: str) -> str:
        """For the table."""
        return "**no**" if name in {each for each, _ in self.unequal} else "yes"

    def beside(self, num_reordered_again: int) -> Comparison:
        """With what two runs differ by."""
        return replace(self, num_reordered_again=num_reordered_again)


def compare(run: Done, record: Done) -> Comparison:
    """Holds a record, or another run, against a run."""
    snapshots = [pickle.loads(done.snapshot.read_bytes()) for done in (run, record)]
    fields = [snapshot["ullage"] for snapshot in snapshots]
    events = [_events(each) for each in fields]
    traces = [_trace(snapshot) for snapshot in snapshots]
    by_use_bytes = _by_use(run, record)
    aspects = {
        "events": [_in_sets(rows, lambda row: row[1] <= 0) for rows in events],
        "torch": [_in_sets(rows, lambda row: row[0] in _FREES) for rows in traces],
        "owners": [_owners(each) for each in fields],
        "modules": [[each["modules"]] for each in fields],
        "phases": [each["marks"] for each in fields],
        "scratch": [_scratch(read_record(done.snapshot)) for done in (run, record)],
    }
    unequal = [
        (name, _first_difference(*pair)) for name, pair in aspects.items() if pair[0] != pair[1]
    ]
    unequal += _compare_devices(run, record, by_use_bytes)
    return Comparison(
        num_events=len(events[0]),
        num_reordered=sum(a != b for a, b in zip(*events, strict=False)),
        by_use_bytes=by_use_bytes,
        unequal=tuple(unequal),
    )


def _events(fields: dict[str, Any]) -> list[Row]:
    """Address, bytes, reserved, scope and device of each; and the kind of an allocation: whether
    autograd noted what ran when a block was freed says nothing about the block.
    """
    columns = fields["events"]
    numbers = [array.array("q", columns[name]) for name in ("address", "bytes", "reserved")]
    scopes = array.array("i", columns["scope"])
    rows = zip(*numbers, scopes, columns["device"], columns["kind"], strict=True)
    return [row if row[1] > 0 else row[:5] for row in rows]


def _trace(snapshot: dict[str, Any]) -> list[Row]:
    """torch's own entries, but for those of its snapshots."""
    return [
        (entry["action"], entry.get("addr"), entry["size"], entry["stream"])
        for trace in snapshot["device_traces"]
        for entry in trace
        if entry["action"] != "snapshot"
    ]


def _in_sets(rows: Iterable[Row], is_free: Any) -> list[Any]:
    """The rows, with frees that follow one another in the order of their addresses."""
    ordered: list[Any] = []
    frees: list[Row] = []
    for row in rows:
        if is_free(row):
            frees.append(row)
            continue
        ordered += [*sorted(frees), row]
        frees = []
    return [*ordered, *sorted(frees)]


def _owners(fields: dict[str, Any]) -> list[Row]:
    """The claims; one that is made twice says nothing more."""
    return sorted({tuple(claim) for claim in fields["claims"]})


def _scratch(record: Record) -> list[Row]:
    """Which block was handed to which library at which position, by the number of the block."""
    handed, lifetimes = record.workspaces, read_blocks(record)
    blocks = find_blocks(lifetimes, handed.position, handed.device, handed.address)
    rows = zip(handed.position.tolist(), np.asarray(blocks).tolist(), handed.library, strict=True)
    return sorted(rows)


def _by_use(run: Done, record: Done) -> int:
    """Bytes that are a cache in the run and an activation in the record."""
    pairs = zip(run.document["devices"], record.document["devices"], strict=True)
    return sum(
        max(0, a["at_peak"][_CACHE] - b["at_peak"][_CACHE])
        for a, b in pairs
        if a["at_peak"][_CACHE] + a["at_peak"][_ACTIVATION]
        == b["at_peak"][_CACHE] + b["at_peak"][_ACTIVATION]
    )


def _compare_devices(run: Done, record: Done, by_use_bytes: int) -> list[tuple[str, str]]:
    """The figures of the documents."""
    unequal = []
    for mine, theirs in zip(run.document["devices"], record.document["devices"], strict=True):
        at_peak = dict(theirs["at_peak"])
        at_peak[_CACHE] += by_use_bytes
        at_peak[_ACTIVATION] -= by_use_bytes
        if at_peak != mine["at_peak"]:
            unequal.append(("owners", f"{theirs['at_peak']} at the peak, not {mine['at_peak']}"))
        if mine["modules"] != theirs["modules"]:
            unequal.append(("modules", "the bytes of modules at the peak"))
        if mine["steps"] != theirs["steps"]:
            unequal.append(("phases", "the peaks of steps"))
        unequal += [
            ("events", f"{name}: {theirs.get(name)}, not {mine.get(name)}")
            for name in (*_TOTALS, *_PEAKS)
            if mine.get(name) != theirs.get(name)
        ]
    return unequal


def _first_difference(mine: Sequence[Any], theirs: Sequence[Any]) -> str:
    """The first row of two lists that differs."""
    for number, (a, b) in enumerate(zip(mine, theirs, strict=False)):
        if a != b:
            return f"row {number} is {b}, not {a}"
    return f"{len(theirs):,} rows, not {len(mine):,}"
