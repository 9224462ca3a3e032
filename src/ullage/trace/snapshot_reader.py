"""Reads a memory snapshot of PyTorch, of any version from 2.0 on, into columns.

snapshot = read_snapshot(Path("snapshot.pickle"))
snapshot.events[0].size_bytes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ullage.errors import SnapshotError
from ullage.trace.plain import (
    ABSENT,
    DICT,
    LIST,
    TEXT,
    PlainFile,
    Value,
    Values,
    integers,
    read_plain,
)
from ullage.trace.snapshot import (
    Action,
    Annotation,
    BlockState,
    BlockTable,
    EventTable,
    Frames,
    Int64Array,
    SegmentTable,
    Snapshot,
    Stacks,
    UInt8Array,
    UInt32Array,
)

T = TypeVar("T", bound=np.generic)

_TOP_KEYS = frozenset(
    {"segments", "device_traces", "allocator_settings", "external_annotations", "host_segments",
     "host_traces", "ullage"}
)  # fmt: skip
_EVENT_KEYS = frozenset(
    {"action", "addr", "device_free", "size", "stream", "time_us", "frames", "forward_frames",
     "compile_context", "user_metadata", "internal_metadata", "category", "pool_id"}
)  # fmt: skip
_SEGMENT_KEYS = frozenset(
    {"device", "address", "total_size", "allocated_size", "active_size", "requested_size",
     "stream", "segment_type", "segment_pool_id", "is_expandable", "frames", "blocks"}
)  # fmt: skip
_BLOCK_KEYS = frozenset({"address", "size", "requested_size", "state", "frames", "history"})
# The first that says something is kept; most events have none.
_CONTEXT_KEYS = ("compile_context", "user_metadata", "internal_metadata", "category")
_STATES = {
    "inactive": BlockState.INACTIVE,
    "active_allocated": BlockState.ACTIVE,
    "active_pending_free": BlockState.PENDING,
    "active_awaiting_free": BlockState.PENDING,
}
_NO_CONTEXT = frozenset({"", "N/A"})


def read_snapshot(path: Path) -> Snapshot:
    """Reads a file.

    Raises:
        SnapshotError: it cannot be read (see `read_plain`), or is not a memory snapshot.
    """
    with read_plain(path) as file:
        try:
            return _Reading(file).snapshot()
        except SnapshotError as error:
            raise SnapshotError(f"cannot read {str(path)!r}: {error}") from None


class _Reading:
    """The numbering of stacks, pools and texts while one file is read."""

    def __init__(self, file: PlainFile) -> None:
        self.file = file
        self.unknown: Counter[str] = Counter()
        self._stacks: dict[int, int] = {0: 0}
        self._pools: dict[tuple[int, int], int] = {(0, 0): 0}
        self._texts: dict[str, int] = {"": 0}

    def snapshot(self) -> Snapshot:
        """The whole file."""
        file, root = self.file, self.file.root
        if root & 7 == LIST:  # the segments alone, as versions before 2.0 had it
            segments: Value = root
        elif root & 7 == DICT and (segments := file.get(root, "segments")) != ABSENT:
            for key in file.keys(root).tolist():
                name = file.text(key) if key & 7 == TEXT else repr(file.python(key))
                if name not in _TOP_KEYS:
                    self.unknown[name] += 1
        else:
            raise SnapshotError(
                'it is a pickle, but not a memory snapshot: it has no "segments"; expected what '
                "torch.cuda.memory._dump_snapshot writes"
            )
        events = self._event_tables(file.get(root, "device_traces"))
        host_events = self._event_tables(file.get(root, "host_traces"))
        tables = self._segment_tables(segments)
        host_tables = self._segment_tables(file.get(root, "host_segments"))
        settings = file.python(file.get(root, "allocator_settings"))
        record = file.get(root, "ullage")
        return Snapshot(
            events=events,
            segments=tables[0],
            blocks=tables[1],
            host_events=host_events,
            host_segments=host_tables[0],
            host_blocks=host_tables[1],
            stacks=self._stack_table(),
            pools=tuple(self._pools),
            texts=tuple(self._texts),
            settings=settings if isinstance(settings, dict) else {},
            annotations=tuple(self._annotations(file.get(root, "external_annotations"))),
            record=file.python(record) if record != ABSENT else None,
            unknown=dict(self.unknown),
        )

    def _event_tables(self, traces: Value) -> tuple[EventTable, ...]:
        return tuple(self._event_table(trace) for trace in self.file.items(traces).tolist())

    def _event_table(self, trace: Value) -> EventTable:
        file = self.file
        self._count_unknown("event", file.count_keys(trace), _EVENT_KEYS)
        address, has_address = integers(file.column(trace, "addr"))
        free, _ = integers(file.column(trace, "device_free"))
        return EventTable(
            action=self._codes(file.column(trace, "action"), _ACTIONS, "action"),
            address=np.where(has_address, address, free),
            size_bytes=self._numbers(trace, "size"),
            stream=self._numbers(trace, "stream"),
            time_us=self._numbers(trace, "time_us"),
            stack=self._stack_column(file.column(trace, "frames")),
            forward_stack=self._stack_column(file.column(trace, "forward_frames")),
            pool=self._pool_column(file.column(trace, "pool_id")),
            context=self._context_column(trace),
        )

    def _segment_tables(self, segments: Value) -> tuple[SegmentTable, BlockTable]:
        file = self.file
        self._count_unknown("segment", file.count_keys(segments), _SEGMENT_KEYS)
        lists = file.column(segments, "blocks").tolist()
        addresses = self._numbers(segments, "address")
        tables = [
            self._block_table(blocks, number, int(addresses[number]))
            for number, blocks in enumerate(lists)
        ]
        kinds = file.column(segments, "segment_type").tolist()
        expandable = file.column(segments, "is_expandable").tolist()
        table = SegmentTable(
            device=self._numbers(segments, "device"),
            address=addresses,
            total_bytes=self._numbers(segments, "total_size"),
            allocated_bytes=self._numbers(segments, "allocated_size"),
            active_bytes=self._numbers(segments, "active_size"),
            requested_bytes=self._numbers(segments, "requested_size"),
            stream=self._numbers(segments, "stream"),
            is_large=np.array([self._is_text(kind, "large") for kind in kinds], dtype=np.uint8),
            is_expandable=np.array([file.python(v) is True for v in expandable], dtype=np.uint8),
            pool=self._pool_column(file.column(segments, "segment_pool_id")),
            stack=self._stack_column(file.column(segments, "frames")),
            first_block=np.cumsum([0, *(len(one) for one in tables)], dtype=np.int64),
        )
        return table, _join_blocks(tables)

    def _block_table(self, blocks: Value, segment: int, address: int) -> BlockTable:
        file = self.file
        self._count_unknown("block", file.count_keys(blocks), _BLOCK_KEYS)
        sizes = self._numbers(blocks, "size")
        begins = address + np.concatenate([[0], np.cumsum(sizes)[:-1]]) if len(sizes) else sizes
        own, has_own = integers(file.column(blocks, "address"))
        requested, has_requested = integers(file.column(blocks, "requested_size"))
        stacks = self._stack_column(file.column(blocks, "frames"))
        for number, history in enumerate(file.column(blocks, "history").tolist()):
            newest = next(iter(file.items(history).tolist()), ABSENT)
            if newest != ABSENT:  # version 2.0: what the block holds is the newest of its history
                frames = np.array([file.get(newest, "frames")], dtype=np.uint64)
                stacks[number] = self._stack_column(frames)[0]
                real = file.get(newest, "real_size")
                if not has_requested[number] and real & 7 == 0:
                    requested[number] = real >> 3
        return BlockTable(
            segment=np.full(len(sizes), segment, dtype=np.int64),
            address=np.where(has_own, own, begins).astype(np.int64),
            size_bytes=sizes,
            requested_bytes=requested,
            state=self._codes(file.column(blocks, "state"), _STATES, "state"),
            stack=stacks,
        )

    def _numbers(self, rows: Value, key: str) -> Int64Array:
        return integers(self.file.column(rows, key))[0]

    def _is_text(self, value: Value, text: str) -> bool:
        return value & 7 == TEXT and self.file.text(value) == text

    def _codes(self, column: Values, known: Mapping[str, int], what: str) -> UInt8Array:
        """The code of each name of a column; names that are not known are counted."""
        names, place = _distinct(column)
        counts = np.bincount(place, minlength=len(names))
        codes = np.full(len(names), 255, dtype=np.uint8)
        for number, (name, count) in enumerate(zip(names.tolist(), counts.tolist(), strict=True)):
            text = self.file.text(name) if name & 7 == TEXT else "(none)"
            if text in known:
                codes[number] = known[text]
            else:
                self.unknown[f"{what} {text}"] += count
        return codes[place]

    def _stack_column(self, column: Values) -> UInt32Array:
        """Dense numbers of the stacks of a column."""
        found, place = _distinct(self.file.stacks_of(column))
        numbers = [self._stacks.setdefault(int(stack), len(self._stacks)) for stack in found]
        return np.array(numbers, dtype=np.uint32)[place]

    def _pool_column(self, column: Values) -> UInt32Array:
        found, place = _distinct(column)
        numbers = []
        for value in found.tolist():
            pair = self.file.python(value) if value & 7 == LIST else None
            is_pool = isinstance(pair, list | tuple) and [type(part) for part in pair] == [int, int]
            key = (pair[0], pair[1]) if pair and is_pool else (0, 0)
            numbers.append(self._pools.setdefault(key, len(self._pools)))
        return np.array(numbers, dtype=np.uint32)[place]

    def _context_column(self, trace: Value) -> UInt32Array:
        context = np.zeros(self.file.length(trace), dtype=np.uint32)
        for key in _CONTEXT_KEYS:
            found, place = _distinct(self.file.column(trace, key))
            texts = [self.file.text(v) if v & 7 == TEXT else "" for v in found.tolist()]
            numbers = [
                0 if text in _NO_CONTEXT else self._texts.setdefault(text, len(self._texts))
                for text in texts
            ]
            context = np.where(context == 0, np.array(numbers, dtype=np.uint32)[place], context)
        return context

    def _stack_table(self) -> Stacks:
        """The stacks that were met, their frames made equal by what they say."""
        rows = [self.file.stack(stack) if stack else _NOTHING for stack in self._stacks]
        flat = np.concatenate(rows)
        dicts, place = np.unique(flat, return_inverse=True)
        places: dict[tuple[str, int, str], int] = {}
        numbers = [places.setdefault(self._frame(value), len(places)) for value in dicts.tolist()]
        frames = Frames(
            file=tuple(file for file, _, _ in places),
            line=np.array([line for _, line, _ in places], dtype=np.int64),
            function=tuple(function for _, _, function in places),
        )
        return Stacks(
            frames=frames,
            start=np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64),
            frame=np.array(numbers, dtype=np.uint32)[place],
        )

    def _frame(self, value: Value) -> tuple[str, int, str]:
        file, line, name = (self.file.get(value, key) for key in ("filename", "line", "name"))
        return (
            self.file.text(file) if file & 7 == TEXT else "",
            line >> 3 if line & 7 == 0 else 0,
            self.file.text(name) if name & 7 == TEXT else "",
        )

    def _annotations(self, rows: Value) -> Iterable[Annotation]:
        for row in self.file.items(rows).tolist():
            found = self.file.python(row)
            if isinstance(found, dict):
                yield Annotation(
                    name=str(found.get("name", "")),
                    stage=str(found.get("stage", "")),
                    time_us=_whole(found.get("time_us")),
                    device=_whole(found.get("device")),
                )

    def _count_unknown(self, what: str, counts: dict[str, int], known: frozenset[str]) -> None:
        for key, count in counts.items():
            if key not in known:
                self.unknown[f"{what} key {key}"] += count


_ACTIONS = {action.name.lower(): action for action in Action if action is not Action.UNKNOWN}
_NOTHING: Values = np.empty(0, dtype=np.uint64)


def _distinct(column: NDArray[T]) -> tuple[NDArray[T], NDArray[np.intp]]:
    """The different values of a column and the place of each entry among them; most columns of a
    long trace are one value all over.
    """
    if len(column) and (column == column[0]).all():
        return column[:1], np.zeros(len(column), dtype=np.intp)
    found, place = np.unique(column, return_inverse=True)
    return found, place


def _join_blocks(tables: Sequence[BlockTable]) -> BlockTable:
    def join(column: Callable[[BlockTable], NDArray[T]], dtype: type[T]) -> NDArray[T]:
        return np.concatenate([np.empty(0, dtype), *map(column, tables)])

    return BlockTable(
        segment=join(lambda one: one.segment, np.int64),
        address=join(lambda one: one.address, np.int64),
        size_bytes=join(lambda one: one.size_bytes, np.int64),
        requested_bytes=join(lambda one: one.requested_bytes, np.int64),
        state=join(lambda one: one.state, np.uint8),
        stack=join(lambda one: one.stack, np.uint32),
    )


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
