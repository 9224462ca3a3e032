"""Exports a snapshot to the formats of other tools, by the suffix of the file's name: the pickle
for PyTorch's own memory_viz, trace events for Perfetto, folded stacks for flame graphs, CSV, the
JSON document, and ullage's own compact file.

    check_format(Path("snapshot.folded"))
    write_export(view, Path("snapshot.folded"), force=False)
"""

from __future__ import annotations

import csv
import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple, TextIO

import numpy as np

from ullage.explain.owners.sites import find_sites
from ullage.ground.errors import SpecError
from ullage.ground.files import write_file
from ullage.ground.printable import printable
from ullage.log.compact_format.compact import write_compact
from ullage.log.model import Category
from ullage.log.snapshot import Action, BlockState, EventTable, SegmentTable, Snapshot, Stacks
from ullage.verbs.document.trace_events import write_trace_events
from ullage.verbs.explain.document import explain_document
from ullage.verbs.explain.page import make_pages
from ullage.verbs.page.payload import SnapshotPage
from ullage.verbs.views.views import ExplainView

_NO_STACK = "no stack was recorded"
_ACTIONS = {action.value: action.name.lower() for action in Action}
_STATES = {
    BlockState.INACTIVE: "inactive",
    BlockState.ACTIVE: "active_allocated",
    BlockState.PENDING: "active_pending_free",
    BlockState.UNKNOWN: "unknown",
}


def check_format(path: Path) -> None:
    """Raises SpecError if the suffix of a name belongs to no format."""
    _find_format(path)


def write_export(view: ExplainView, path: Path, *, force: bool) -> Path:
    """Writes a snapshot in the format of the name's suffix, like `files.keep_file`.

    Returns the path of the file.

    Raises:
        SpecError: the suffix belongs to no format.
        SnapshotError: the format shows device memory, and the snapshot has none.
        OSError: it cannot be written there.
    """
    chosen = _find_format(path)
    return write_file(lambda target: chosen.write(target, view), path, force=force)


def _find_format(path: Path) -> _Format:
    # The longest suffix first, because ".perfetto.json" also ends in ".json".
    for ending in sorted(_FORMATS, key=len, reverse=True):
        if path.name.lower().endswith(ending):
            return _FORMATS[ending]
    known = ", ".join(f"{ending} ({form.what})" for ending, form in _FORMATS.items())
    raise SpecError(f"the name {path.name!r} says no format to export to; end it in one of {known}")


def write_folded(out: TextIO, page: SnapshotPage, event: int | None = None) -> None:
    """Writes the blocks that are live after an event (default: at the peak) as folded stacks: a
    line for each stack, with the outermost frame first, and the bytes at the end.

    Source: the format of Brendan Gregg's flamegraph.pl, which speedscope and inferno also read.
    """
    blocks, stacks = page.replay.blocks, page.snapshot.stacks
    moment = page.levels.peak_event if event is None else event
    live = blocks.is_live(moment)
    sums = np.bincount(
        blocks.stack[live], weights=blocks.size_bytes[live], minlength=len(stacks)
    ).astype(np.int64)
    lines: dict[str, int] = {}  # different stacks may have the same line
    for stack in np.flatnonzero(sums).tolist():
        frames = [_describe(*frame) for frame in reversed(stacks.of(stack))]
        text = ";".join(frames) or _NO_STACK
        lines[text] = lines.get(text, 0) + int(sums[stack])
    out.writelines(f"{text} {size}\n" for text, size in lines.items())


def write_csv(out: TextIO, pages: Sequence[SnapshotPage]) -> None:
    """Writes a line for each block: address, size, first and last event, and owner.

    Unknown fields are empty: the birth of a block from before the trace, the death of a block that
    is live at the end, and times if the file has none.
    """
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(
        ("device", "address", "size_bytes", "requested_bytes", "birth_event", "death_event",
         "birth_us", "death_us", "stream", "stack", "site", "category", "module")
    )  # fmt: skip
    for page in pages:
        rows.writerows(_csv_rows(page))


def _csv_rows(page: SnapshotPage) -> Iterator[tuple[object, ...]]:
    blocks, num_events = page.replay.blocks, page.replay.num_events
    sites = find_sites(page.snapshot.stacks)
    times = page.snapshot.events_of(page.device).time_us.tolist()
    categories = [category.value for category in Category]
    rows = zip(
        blocks.address.tolist(), blocks.size_bytes.tolist(), blocks.requested_bytes.tolist(),
        blocks.birth.tolist(), blocks.death.tolist(), blocks.stream.tolist(),
        blocks.stack.tolist(), strict=True,
    )  # fmt: skip
    for number, (address, size, requested, birth, death, stream, stack) in enumerate(rows):
        is_born, dies = birth >= 0, death < num_events
        yield (
            page.device, address, size, requested, birth if is_born else "", death if dies else "",
            (times[birth] or "") if is_born else "", (times[death] or "") if dies else "",
            stream, stack, sites.names[sites.of_stack[stack]],
            "" if page.category is None else categories[page.category[number]],
            "" if page.module is None else page.module_names[page.module[number]],
        )  # fmt: skip


def write_pickle(out: BinaryIO, snapshot: Snapshot) -> None:
    """Writes the snapshot like torch's own functions, in the newest layout and in pickle protocol
    4, the latest that pytorch.org/memory_viz reads, for a file of any version or protocol.

    Omits pinned host memory, which memory_viz does not show.
    """
    lists = _frame_lists(snapshot.stacks)
    raw: dict[str, Any] = {
        "segments": list(_segments(snapshot, lists)),
        "device_traces": [list(_events(table, snapshot, lists)) for table in snapshot.events],
        "allocator_settings": dict(snapshot.settings),
        "external_annotations": [
            {
                "stage": annotation.stage,
                "name": annotation.name,
                "device": annotation.device,
                "time_us": annotation.time_us,
            }
            for annotation in snapshot.annotations
        ],
    }
    if snapshot.record is not None:
        raw["ullage"] = dict(snapshot.record)
    pickle.dump(raw, out, protocol=4)


def _frame_lists(stacks: Stacks) -> list[list[dict[str, Any]]]:
    """The frames of each stack as torch writes them; equal frames are one object."""
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
    """Describes a frame of a folded stack, which must not contain a semicolon."""
    where = "" if file in ("", "??") else f"{file}:{line}" if line else file
    text = f"{function} ({where})" if where and function else function or where or "?"
    return printable(text).replace(";", ",")


class _Format(NamedTuple):
    """The purpose of a format, and the function that writes it."""

    what: str
    write: Callable[[Path, ExplainView], None]


def _to_pickle(path: Path, view: ExplainView) -> None:
    with path.open("wb") as out:
        write_pickle(out, view.report.snapshot)


def _to_text(write: Callable[[TextIO, ExplainView], None]) -> Callable[[Path, ExplainView], None]:
    def write_to(path: Path, view: ExplainView) -> None:
        with path.open("w", encoding="utf-8", newline="") as out:
            write(out, view)

    return write_to


_FORMATS = MappingProxyType(
    {
        ".pickle": _Format("PyTorch's memory_viz", _to_pickle),
        ".perfetto.json": _Format(
            "ui.perfetto.dev, chrome://tracing",
            _to_text(lambda out, view: write_trace_events(out, make_pages(view))),
        ),
        ".folded": _Format(
            "flamegraph.pl, speedscope",
            _to_text(lambda out, view: write_folded(out, make_pages(view)[0])),
        ),
        ".csv": _Format(
            "every block", _to_text(lambda out, view: write_csv(out, make_pages(view)))
        ),
        ".json": _Format(
            "what --json prints",
            _to_text(lambda out, view: json.dump(explain_document(view), out, indent=2)),
        ),
        ".ullage": _Format(
            "opens at once", lambda path, view: write_compact(view.report.snapshot, path)
        ),
    }
)
