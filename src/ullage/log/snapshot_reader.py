"""Reads a memory snapshot of PyTorch, of any version from 2.0 on, into columns.

snapshot = read_snapshot(Path("snapshot.pickle"))
snapshot.events[0].size_bytes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ullage.ground.errors import SnapshotError
from ullage.ground.parsing import show_value
from ullage.ground.printable import printable_name, printable_values
from ullage.log.compact_format.compact import is_compact, read_compact
from ullage.log.plain import (
    ABSENT,
    DICT,
    LIST,
    TEXT,
    TRUE,
    PlainFile,
    Value,
    Values,
    integers,
    read_plain,
)
from ullage.log.snapshot import (
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
    as_posix,
)

T = TypeVar("T", bound=np.generic)

TOP_KEYS = frozenset(
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
_NOT_MET = 2**32 - 1
# PyTorch is built for 120 at most.
_MAX_DEVICES = 1024
# A size beyond any device, and an address beyond any: together they stay within 64 bits.
MAX_BYTES = 2**56
MAX_ADDRESS = 2**60 - 1
_NO_CONTEXT = frozenset({"", "N/A"})
_NEWER = "it is of a PyTorch that this ullage does not know: use a newer ullage"


def read_snapshot(path: Path, *, has_record: bool = True) -> Snapshot:
    """Reads a file, a pickle of PyTorch's or a compact file of ours, with its record or without.

    Raises:
        SnapshotError: it cannot be read (see `read_plain`, `read_compact`), or is not a memory
            snapshot.
    """
    if is_compact(path):
        return read_compact(path)
    with read_plain(path) as file:
        try:
            return parse_snapshot(file, has_record=has_record)
        except SnapshotError as error:
            raise SnapshotError(f"cannot read {str(path)!r}: {error}") from None


def parse_snapshot(file: PlainFile, *, has_record: bool = True) -> Snapshot:
    """The snapshot that these values are; raises as `read_snapshot` does, without a path."""
    return _Reading(file).snapshot(has_record=has_record)


class _Reading:
    def __init__(self, file: PlainFile) -> None:
        self.file = file
        self.unknown: Counter[str] = Counter()
        # The number of each of the file's stacks; 0 is none.
        self._stacks = np.full(file.num_stacks + 1, _NOT_MET, dtype=np.uint32)
        self._stacks[0], self._num_stacks = 0, 1
        self._pools: dict[tuple[int, int], int] = {(0, 0): 0}
        self._texts: dict[str, int] = {"": 0}

    def snapshot(self, *, has_record: bool) -> Snapshot:
        """The whole file."""
        file, root = self.file, self.file.root
        if root & 7 == LIST and file.length(root):  # the segments alone, as before version 2.0
            segments: Value = root
        elif root & 7 == DICT and (segments := file.get(root, "segments")) != ABSENT:
            keys = dict.fromkeys(map(file.name, file.keys(root).tolist()), 1)
            self._count_unknown("", keys, TOP_KEYS, ("device_traces",))
        else:
            raise SnapshotError(
                'it is a pickle, but not a memory snapshot: it has no "segments"; expected what '
                "torch.cuda.memory._dump_snapshot writes"
            )
        self._check_lists(root)
        events = self._event_tables(file.get(root, "device_traces"))
        host_events = self._event_tables(file.get(root, "host_traces"), is_host=True)
        tables = self._segment_tables(segments)
        host_tables = self._segment_tables(file.get(root, "host_segments"))
        settings = file.python(file.get(root, "allocator_settings"))
        record = file.python(file.get(root, "ullage")) if has_record else None
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
            settings=printable_values(settings) if isinstance(settings, dict) else {},
            annotations=tuple(self._annotations(file.get(root, "external_annotations"))),
            record=record if isinstance(record, dict) else None,
            unknown=dict(self.unknown),
        )

    def _check_lists(self, root: Value) -> None:
        """Refuses what is not a list where a snapshot has one."""
        names = ("segments", "device_traces", "host_segments", "host_traces")
        for name in names if root & 7 == DICT else ():
            value = self.file.get(root, name)
            if value != ABSENT and value & 7 != LIST:
                raise SnapshotError(f"{name} is {self._shown(value)}; expected a list")

    def _check_rows(self, rows: Values, what: str) -> None:
        for value in rows[(rows & np.uint64(7)) != DICT][:1].tolist():
            raise SnapshotError(
                f"it is a pickle, but not a memory snapshot: {what} is {self._shown(value)}; "
                "expected what torch.cuda.memory._dump_snapshot writes"
            )

    def _shown(self, value: Value) -> str:
        try:
            return show_value(self.file.python(value))
        except SnapshotError:  # a list in itself, as deep as one likes
            return "a list of lists"

    def _event_tables(self, traces: Value, *, is_host: bool = False) -> tuple[EventTable, ...]:
        """The events of all devices are read as one table, which is then cut."""
        lists = self.file.items(traces)
        # In torch 2.15 the host has one trace.
        if is_host and len(lists) and lists[0] & np.uint64(7) == DICT:
            self._check_rows(lists, "an event")
            return (self._event_table(lists),)
        if len(lists) > _MAX_DEVICES:
            raise SnapshotError(f"it has traces of {len(lists)} devices; up to {_MAX_DEVICES} are")
        for value in lists[(lists & np.uint64(7)) != LIST][:1].tolist():
            raise SnapshotError(f"the trace of a device is {self._shown(value)}; expected a list")
        rows, starts = self.file.flatten(lists)
        self._check_rows(rows, "an event")
        table = self._event_table(rows)
        return tuple(
            EventTable(*(getattr(table, name)[begin:end] for name in EventTable.__slots__))
            for begin, end in pairwise(starts.tolist())
        )

    def _event_table(self, rows: Values) -> EventTable:
        file = self.file
        counts = file.count_keys(rows)
        has_place = "device_free" in counts  # an out-of-memory has this in place of an address
        self._count_unknown(
            "event", counts, _EVENT_KEYS, ("action", "size", *(() if has_place else ("addr",)))
        )
        address, has_address = integers(file.column(rows, "addr"))
        free, _ = integers(file.column(rows, "device_free"))
        return EventTable(
            action=self._codes(file.column(rows, "action"), _ACTIONS, "action"),
            address=np.where(has_address, address, free),
            size_bytes=self._event_sizes(rows),
            stream=self._numbers(rows, "stream"),
            time_us=self._numbers(rows, "time_us"),
            stack=self._stack_column(file.column(rows, "frames")),
            forward_stack=self._stack_column(file.column(rows, "forward_frames")),
            pool=self._pool_column(file.column(rows, "pool_id")),
            context=self._context_column(rows),
        )

    def _segment_tables(self, segments: Value) -> tuple[SegmentTable, BlockTable]:
        file, rows = self.file, self.file.items(segments)
        self._check_rows(rows, "a segment")
        self._count_unknown(
            "segment", file.count_keys(rows), _SEGMENT_KEYS, ("address", "total_size", "blocks")
        )
        blocks, first_block = file.flatten(file.column(rows, "blocks"))
        table = SegmentTable(
            device=self._numbers(rows, "device"),
            address=self._sizes(rows, "address", "segment", MAX_ADDRESS),
            total_bytes=self._sizes(rows, "total_size", "segment"),
            allocated_bytes=self._sizes(rows, "allocated_size", "segment"),
            active_bytes=self._sizes(rows, "active_size", "segment"),
            requested_bytes=self._sizes(rows, "requested_size", "segment"),
            stream=self._numbers(rows, "stream"),
            is_large=self._equals(rows, "segment_type", "large"),
            is_expandable=(file.column(rows, "is_expandable") == TRUE).astype(np.uint8),
            pool=self._pool_column(file.column(rows, "segment_pool_id")),
            stack=self._stack_column(file.column(rows, "frames")),
            first_block=first_block,
        )
        segment = np.repeat(np.arange(len(rows)), np.diff(first_block))
        return table, self._block_table(blocks, segment, table)

    def _block_table(self, rows: Values, segment: Int64Array, segments: SegmentTable) -> BlockTable:
        file = self.file
        self._count_unknown("block", file.count_keys(rows), _BLOCK_KEYS, ("size", "state"))
        self._check_rows(rows, "a block")
        sizes = self._sizes(rows, "size", "block")
        before = np.cumsum(sizes) - sizes  # of all segments
        first = np.minimum(segments.first_block[:-1], max(len(sizes) - 1, 0))[segment]
        begins = segments.address[segment] + before - before[first]
        own, has_own = integers(file.column(rows, "address"))
        has_requested = integers(file.column(rows, "requested_size"))[1]
        requested = self._sizes(rows, "requested_size", "block")
        frames, histories = file.column(rows, "frames"), file.column(rows, "history")
        if (histories != ABSENT).any():  # version 2.0: what a block holds is the newest of these
            newest = file.item(histories, 0)
            frames = np.where(newest != ABSENT, file.column(newest, "frames"), frames)
            requested = np.where(has_requested, requested, self._numbers(newest, "real_size"))
        return BlockTable(
            segment=segment,
            address=np.where(has_own, own, begins),
            size_bytes=sizes,
            requested_bytes=requested,
            state=self._codes(file.column(rows, "state"), _STATES, "state"),
            stack=self._stack_column(frames),
        )

    def _event_sizes(self, rows: Values) -> Int64Array:
        """A request may be larger than any device; an allocation may not."""
        names, place = _distinct(self.file.column(rows, "action"))
        texts = [self.file.text(name) if name & 7 == TEXT else "" for name in names.tolist()]
        is_given = np.array([text != "oom" for text in texts], dtype=bool)[place]
        sizes = self._sizes(rows, "size", "event", MAX_ADDRESS)
        self._sizes(rows[is_given], "size", "event")
        return sizes

    def _sizes(self, rows: Values, key: str, what: str, limit: int = MAX_BYTES) -> Int64Array:
        """A column of bytes or addresses; 0 where a row has none, refused where it is no such."""
        column = self.file.column(rows, key)
        numbers, is_integer = integers(column)
        is_wrong = (~is_integer & (column != ABSENT)) | (numbers < 0) | (numbers > limit)
        for row in np.flatnonzero(is_wrong)[:1].tolist():
            raise SnapshotError(
                f"{key} of {what} {row} is {self._shown(int(column[row]))}; expected a whole "
                f"number of bytes from 0 to {limit}"
            )
        if limit == MAX_BYTES and numbers.sum(dtype=np.float64) > 2**62:
            raise SnapshotError(f"{key} of all {what}s comes to more than 64 bits hold")
        return numbers

    def _numbers(self, rows: Values, key: str) -> Int64Array:
        return integers(self.file.column(rows, key))[0]

    def _equals(self, rows: Values, key: str, text: str) -> UInt8Array:
        values, place = _distinct(self.file.column(rows, key))
        is_it = [value & 7 == TEXT and self.file.text(value) == text for value in values.tolist()]
        return np.array(is_it, dtype=np.uint8)[place]

    def _codes(self, column: Values, known: Mapping[str, int], what: str) -> UInt8Array:
        """The code of each name of a column; names that are not known are counted."""
        names, place = _distinct(column)
        counts = np.bincount(place, minlength=len(names))
        codes = np.full(len(names), 255, dtype=np.uint8)
        for number, (name, count) in enumerate(zip(names.tolist(), counts.tolist(), strict=True)):
            text = self.file.name(name) if name & 7 == TEXT else "(none)"
            if text in known:
                codes[number] = known[text]
            else:
                self.unknown[f"{what} {text}"] += count
        texts = [self.file.name(name) for name in names.tolist() if name & 7 == TEXT]
        if known is _ACTIONS and texts and not known.keys() & {*texts}:
            raise SnapshotError(f"no {what} in it is known, such as {texts[0]!r}; {_NEWER}")
        return codes[place]

    def _stack_column(self, column: Values) -> UInt32Array:
        """Dense numbers of the stacks of a column, in the order in which they are met."""
        stacks = self.file.stacks_of(column)
        is_used = np.zeros(len(self._stacks), dtype=bool)
        is_used[stacks] = True
        new = np.flatnonzero(is_used & (self._stacks == _NOT_MET))
        self._stacks[new] = np.arange(self._num_stacks, self._num_stacks + len(new))
        self._num_stacks += len(new)
        return self._stacks[stacks]

    def _pool_column(self, column: Values) -> UInt32Array:
        """A pool is a pair of whole numbers; whatever else stands for the default one."""
        first, is_first = integers(self.file.item(column, 0))
        second, is_second = integers(self.file.item(column, 1))
        is_pair = is_first & is_second & (self.file.item(column, 2) == ABSENT)
        owners, owner = _distinct(np.where(is_pair, first, 0))
        numbers, number = _distinct(np.where(is_pair, second, 0))
        values, place = _distinct(owner * len(numbers) + number)
        known = [
            self._pools.setdefault((pair[0], pair[1]), len(self._pools))
            for pair in zip(
                owners[values // max(len(numbers), 1)].tolist(),
                numbers[values % max(len(numbers), 1)].tolist(),
                strict=True,
            )
        ]
        return np.array(known, dtype=np.uint32)[place]

    def _context_column(self, rows: Values) -> UInt32Array:
        context = np.zeros(len(rows), dtype=np.uint32)
        for key in _CONTEXT_KEYS:
            values, place = _distinct(self.file.column(rows, key))
            texts = [
                printable_name(self.file.text(v)) if v & 7 == TEXT else "" for v in values.tolist()
            ]
            numbers = [
                0 if text in _NO_CONTEXT else self._texts.setdefault(text, len(self._texts))
                for text in texts
            ]
            context = np.where(context == 0, np.array(numbers, dtype=np.uint32)[place], context)
        return context

    def _stack_table(self) -> Stacks:
        """The stacks that were met, their frames made equal by what they say."""
        file = self.file
        met = np.flatnonzero(self._stacks != _NOT_MET)
        rows = [file.stack(stack) for stack in met[np.argsort(self._stacks[met])].tolist()]
        dicts, place = np.unique(np.concatenate(rows), return_inverse=True)
        keys = zip(
            self._names(dicts, "filename", as_posix),
            self._numbers(dicts, "line").tolist(),
            self._names(dicts, "name"),
            strict=True,
        )
        places: dict[tuple[str, int, str], int] = {}
        numbers = [places.setdefault(key, len(places)) for key in keys]
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

    def _names(self, rows: Values, key: str, change: Callable[[str], str] = str) -> list[str]:
        """Texts that are shown: frames, annotations."""
        texts = self.file.column(rows, key).tolist()
        return [
            printable_name(change(self.file.text(text))) if text & 7 == TEXT else ""
            for text in texts
        ]

    def _annotations(self, annotations: Value) -> Iterable[Annotation]:
        rows = self.file.items(annotations)
        columns = (
            self._names(rows, "name"),
            self._names(rows, "stage"),
            self._numbers(rows, "time_us").tolist(),
            self._numbers(rows, "device").tolist(),
        )
        return map(Annotation, *columns)

    def _count_unknown(
        self, what: str, counts: dict[str, int], known: frozenset[str], needed: tuple[str, ...]
    ) -> None:
        """Counts keys that are not known. Refuses rows whose other keys may stand for those that
        all versions of PyTorch so far have: without them the bytes would be wrong.
        """
        unknown = [key for key in counts if key not in known]
        self.unknown.update(
            {f"{what} key {key}".removeprefix(" key "): counts[key] for key in unknown}
        )
        lacking = [key for key in needed if key not in counts]
        if lacking and unknown:
            who = f"no {what} in it has" if what else "it has no"
            raise SnapshotError(f"{who} {lacking[0]!r}, and {unknown[0]!r} is not known; {_NEWER}")


_ACTIONS = {action.name.lower(): action for action in Action if action is not Action.UNKNOWN}
# Every text that means something to a reader of snapshots.
FORMAT_TEXTS = TOP_KEYS.union(
    _EVENT_KEYS, _SEGMENT_KEYS, _BLOCK_KEYS, _ACTIONS, _STATES, _NO_CONTEXT,
    ("filename", "line", "name", "stage", "START", "END", "small", "large", "real_size"),
)  # fmt: skip


def _distinct(column: NDArray[T]) -> tuple[NDArray[T], NDArray[np.intp]]:
    """The different values of a column and the place of each entry among them; most columns of a
    long trace are one value all over.
    """
    if len(column) and (column == column[0]).all():
        return column[:1], np.zeros(len(column), dtype=np.intp)
    values, place = np.unique(column, return_inverse=True)
    return values, place
