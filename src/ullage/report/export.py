"""A snapshot in the formats of other tools: folded stacks for flame graphs, CSV, counter tracks for
Perfetto, and the pickle that PyTorch's own memory_viz reads.

with path.open("wb") as file:
    write_perfetto(file, page)
"""

from __future__ import annotations

import csv
import pickle
from collections.abc import Iterator
from typing import Any, BinaryIO, TextIO

import numpy as np

from ullage.explain.levels import find_levels
from ullage.explain.sites import find_sites
from ullage.report.page_payload import SnapshotPage
from ullage.report.palette import CATEGORY_LOOKS
from ullage.trace.model import Category
from ullage.trace.snapshot import (
    Action,
    BlockState,
    EventTable,
    Int64Array,
    SegmentTable,
    Snapshot,
    Stacks,
)

_NO_STACK = "no stack was recorded"
_ACTIONS = {action.value: action.name.lower() for action in Action}
_STATES = {
    BlockState.INACTIVE: "inactive",
    BlockState.ACTIVE: "active_allocated",
    BlockState.PENDING: "active_pending_free",
    BlockState.UNKNOWN: "unknown",
}


def write_folded(out: TextIO, page: SnapshotPage, event: int | None = None) -> None:
    """Writes the blocks that are live after an event, by default at the peak, as folded stacks: a
    line for each stack, outermost frame first, then the bytes.

    Source: the format of Brendan Gregg's flamegraph.pl, which speedscope and inferno read too.
    """
    blocks, stacks = page.replay.blocks, page.snapshot.stacks
    moment = find_levels(page.replay).peak_event if event is None else event
    live = blocks.is_live(moment)
    sums = np.bincount(
        blocks.stack[live], weights=blocks.size_bytes[live], minlength=len(stacks)
    ).astype(np.int64)
    lines: dict[str, int] = {}  # stacks may differ in what a line does not say
    for stack in np.flatnonzero(sums).tolist():
        frames = [_describe(*frame) for frame in reversed(stacks.of(stack))]
        text = ";".join(frames) or _NO_STACK
        lines[text] = lines.get(text, 0) + int(sums[stack])
    out.writelines(f"{text} {size}\n" for text, size in lines.items())


def write_csv(out: TextIO, page: SnapshotPage) -> None:
    """Writes a line for each block: where, how large, from which event to which, and whose.

    Empty is what is not known: the birth of a block from before the trace, the death of one that is
    live at the end, times where the file has none.
    """
    blocks, num_events = page.replay.blocks, page.replay.num_events
    sites = find_sites(page.snapshot.stacks)
    times = page.snapshot.events_of(page.device).time_us.tolist()
    categories = [category.value for category in Category]
    out_rows = csv.writer(out, lineterminator="\n")
    out_rows.writerow(
        ("address", "size_bytes", "requested_bytes", "birth_event", "death_event", "birth_us",
         "death_us", "stream", "stack", "site", "category", "module")
    )  # fmt: skip
    rows = zip(
        blocks.address.tolist(), blocks.size_bytes.tolist(), blocks.requested_bytes.tolist(),
        blocks.birth.tolist(), blocks.death.tolist(), blocks.stream.tolist(),
        blocks.stack.tolist(), strict=True,
    )  # fmt: skip
    for number, (address, size, requested, birth, death, stream, stack) in enumerate(rows):
        is_born, dies = birth >= 0, death < num_events
        out_rows.writerow(
            (
                address, size, requested, birth if is_born else "", death if dies else "",
                (times[birth] or "") if is_born else "", (times[death] or "") if dies else "",
                stream, stack, sites.names[sites.of_stack[stack]],
                "" if page.category is None else categories[page.category[number]],
                "" if page.module is None else page.module_names[page.module[number]],
            )
        )  # fmt: skip


def write_perfetto(out: BinaryIO, page: SnapshotPage) -> None:
    """Writes counter tracks for ui.perfetto.dev: live, requested and reserved bytes, and the live
    bytes of each category where they are known. Where the file has no times, an event is 1 us.

    Source: the fields of TracePacket, TrackDescriptor, CounterDescriptor and TrackEvent in
    protos/perfetto/trace/ of Perfetto.
    """
    times = page.snapshot.events_of(page.device).time_us
    if not times.any():
        times = np.arange(page.replay.num_events)
    # A value holds from its event on; the first is that of the moment before the trace.
    moments = np.concatenate([times[:1], times]) if len(times) else np.zeros(1, np.int64)
    for track, (name, level) in enumerate(_counters(page), start=1):
        # TrackDescriptor: uuid, name, counter of bytes.
        descriptor = _field(1, track) + _field(2, f"device {page.device} {name}".encode())
        descriptor += _field(8, _field(3, _UNIT_BYTES))
        out.write(_packet(_field(60, descriptor) + _field(10, track)))
        changes = np.flatnonzero(np.diff(level, prepend=-1))
        # TrackEvent: type, track_uuid, and the key of counter_value.
        head = _field(9, _TYPE_COUNTER) + _field(11, track) + _varint(30 << 3)
        tail = _field(10, track)
        for time_us, value in zip(moments[changes].tolist(), level[changes].tolist(), strict=True):
            event = _field(11, head + _varint(value))
            out.write(_packet(_field(8, time_us * 1000) + event + tail))


_UNIT_BYTES = 3
_TYPE_COUNTER = 4


def _counters(page: SnapshotPage) -> Iterator[tuple[str, Int64Array]]:
    levels, blocks = find_levels(page.replay), page.replay.blocks
    yield "reserved", levels.reserved_bytes
    yield "live", levels.allocated_bytes
    yield "requested", levels.requested_bytes
    if page.category is None:
        return
    for code, category in enumerate(Category):
        mine = page.category == code
        if not mine.any():
            continue
        level = np.zeros(page.replay.num_events + 2, dtype=np.int64)
        np.add.at(level, blocks.birth[mine] + 1, blocks.size_bytes[mine])
        np.subtract.at(level, blocks.death[mine] + 1, blocks.size_bytes[mine])
        yield f"live: {CATEGORY_LOOKS[category].label}", np.cumsum(level)[:-1]


def _packet(body: bytes) -> bytes:
    return _field(1, body)


def _field(number: int, value: int | bytes) -> bytes:
    """A field of a protocol buffer: a varint, or bytes with their length."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def write_pickle(out: BinaryIO, snapshot: Snapshot) -> None:
    """Writes the snapshot as torch's own functions do, in the newest form and in pickle protocol 4,
    the last that pytorch.org/memory_viz reads, whatever version or protocol it came from.

    Leaves out what ullage recorded, and pinned host memory, which memory_viz does not show.
    """
    lists = _frame_lists(snapshot.stacks)
    raw = {
        "segments": list(_segments(snapshot, lists)),
        "device_traces": [list(_events(table, snapshot, lists)) for table in snapshot.events],
        "allocator_settings": dict(snapshot.settings),
        "external_annotations": [
            {"stage": one.stage, "name": one.name, "device": one.device, "time_us": one.time_us}
            for one in snapshot.annotations
        ],
    }
    pickle.dump(raw, out, protocol=4)


def _frame_lists(stacks: Stacks) -> list[list[dict[str, Any]]]:
    """The frames of each stack as torch writes them; equal ones are shared."""
    known = stacks.frames
    frames = [
        {"name": name, "filename": file, "line": line}
        for file, line, name in zip(known.file, known.line.tolist(), known.function, strict=True)
    ]
    return [
        [frames[number] for number in stacks.frame[begin:end].tolist()]
        for begin, end in zip(stacks.start[:-1], stacks.start[1:], strict=True)
    ]


def _segments(snapshot: Snapshot, lists: list[list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    table, blocks = snapshot.segments, snapshot.blocks
    for number, segment in enumerate(_rows(table, snapshot)):
        first, end = table.first_block[number], table.first_block[number + 1]
        segment["frames"] = lists[table.stack[number]]
        segment["blocks"] = [
            {
                "address": int(blocks.address[i]), "size": int(blocks.size_bytes[i]),
                "requested_size": int(blocks.requested_bytes[i]),
                "state": _STATES[BlockState(int(blocks.state[i]))],
                "frames": lists[blocks.stack[i]],
            }
            for i in range(first, end)
        ]  # fmt: skip
        yield segment


def _rows(table: SegmentTable, snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    columns = {
        "device": table.device, "address": table.address, "total_size": table.total_bytes,
        "allocated_size": table.allocated_bytes, "active_size": table.active_bytes,
        "requested_size": table.requested_bytes, "stream": table.stream,
    }  # fmt: skip
    for number in range(len(table)):
        yield {
            **{key: int(column[number]) for key, column in columns.items()},
            "segment_type": "large" if table.is_large[number] else "small",
            "segment_pool_id": snapshot.pools[table.pool[number]],
            "is_expandable": bool(table.is_expandable[number]),
        }


def _events(
    table: EventTable, snapshot: Snapshot, lists: list[list[dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    rows = zip(
        table.action.tolist(), table.address.tolist(), table.size_bytes.tolist(),
        table.stream.tolist(), table.time_us.tolist(), table.stack.tolist(), table.pool.tolist(),
        strict=True,
    )  # fmt: skip
    for action, address, size, stream, time_us, stack, pool in rows:
        place = "device_free" if action == Action.OOM else "addr"
        yield {
            "action": _ACTIONS[action], place: address, "size": size, "stream": stream,
            "time_us": time_us, "pool_id": snapshot.pools[pool], "frames": lists[stack],
        }  # fmt: skip


def _describe(file: str, line: int, function: str) -> str:
    """A frame of a folded stack, which may hold no semicolon."""
    where = "" if file in ("", "??") else f"{file}:{line}" if line else file
    text = f"{function} ({where})" if where and function else function or where or "?"
    return text.replace(";", ",").replace("\n", " ")
