"""The data of a page: the lifetime of every block, the segments, and the stacks, as packed columns.
Addresses become heights: the ranges that were ever reserved are stacked without the gaps between
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ullage.answers.block_kinds import Map
from ullage.explain.moments.course import Course
from ullage.explain.moments.levels import Levels
from ullage.explain.owners.sites import Sites, find_sites, rank_frames
from ullage.log.blocks import Blocks
from ullage.log.model import Category
from ullage.log.replay import Replay
from ullage.log.snapshot import Action, Int64Array, Snapshot, UInt8Array
from ullage.verbs.page.columns import Packing
from ullage.verbs.page.time import StepPage, pack_step
from ullage.verbs.views.palette import CATEGORY_LOOKS

_UNIT_BYTES = 512  # the allocator rounds sizes to a multiple of this
_MAX_HEIGHT = 2**31
_NO_TRACE = "The file has no trace of events: all that is shown is the moment when it was written."


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding for the page, in words.

    Attributes:
        code: the code of the rule, such as "UL101".
        title: the title, one line.
        text: the evidence, the cost and the remedy.
        bytes: the possible gain; None if unknown.
    """

    code: str
    title: str
    text: str
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SnapshotPage:
    """The contents of a page: one device of a snapshot, with its owners and findings.

    Attributes:
        title: the title of the page, such as the name of the file.
        snapshot, replay, levels: the snapshot, the replay of its trace, and what was in use.
        device: the index of the device.
        category: (num_blocks,) the index of each block's category in `tuple(Category)`; None if
            unknown, then colours show call sites.
        is_guess: whether the categories are guesses.
        module: (num_blocks,) the number of each block's module in `module_names`; None if unknown.
        module_names: paths such as "model.layers.0.mlp"; the empty one is "no module".
        course: steps and phases; None if they were not searched for.
        findings: the findings, the most important first.
        summary: pairs of a label and a value, shown at the top.
        notes: remarks on the reliability of the page; contradictions of the file are added.
        step: the time of the last step; None: it was not asked for.
        capacity: the bytes of PyTorch's allocator with which the device is full, and what is said
            of them; None: unknown.
    """

    title: str
    snapshot: Snapshot
    replay: Replay
    levels: Levels
    device: int = 0
    category: UInt8Array | None = None
    is_guess: bool = False
    module: NDArray[Any] | None = None
    module_names: tuple[str, ...] = ()
    course: Course | None = None
    findings: tuple[Finding, ...] = ()
    summary: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    step: StepPage | None = None
    capacity: tuple[int, str] | None = None


def map_of(*pages: SnapshotPage, is_comparison: bool = False) -> Map:
    """The map of devices, the first of which is shown at the start; or of two runs compared."""
    return Map(tuple(map(pack_page, pages)), is_comparison)


def pack_page(page: SnapshotPage) -> str:
    """Packs the columns and texts of a page as base64 text."""
    sites = find_sites(page.snapshot.stacks)
    heights = lay_out(page.replay)
    packed = Packing()
    _add_blocks(packed, page, heights)
    _add_segments(packed, page, heights)
    names = _add_stacks(packed, page.snapshot, sites)
    step = None if page.step is None else pack_step(packed, page.step)
    return packed.text({**_header(page, sites, heights), **names, "time": step})


@dataclass(frozen=True, slots=True)
class Heights:
    """The first address of each range, and the height at which it is drawn, in bytes."""

    address: Int64Array
    height: Int64Array
    total: int
    unit_bytes: int

    def at(self, address: Int64Array) -> Int64Array:
        """The height of an address in one of the ranges."""
        place = np.searchsorted(self.address, address, side="right") - 1
        return self.height[place] + (address - self.address[place]) // self.unit_bytes


def lay_out(replay: Replay) -> Heights:
    """Stacks the ranges of addresses that blocks and segments ever had."""
    blocks, segments = replay.blocks, replay.segments
    begin = np.concatenate([blocks.address, segments.address])
    size = np.concatenate([blocks.size_bytes, segments.size_bytes])
    order = np.argsort(begin, kind="stable")
    begin, size = begin[order], size[order]
    if not len(begin):
        return Heights(begin, begin, 0, _UNIT_BYTES)
    reach = np.maximum.accumulate(begin + size)
    is_first = np.concatenate([[True], begin[1:] > reach[:-1]])
    is_last = np.append(is_first[1:], True)
    lengths = reach[is_last] - begin[is_first]
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    everything = int(np.bitwise_or.reduce(np.concatenate([begin, size]), initial=_UNIT_BYTES))
    unit, total = everything & -everything, int(lengths.sum())
    while total // unit >= _MAX_HEIGHT:
        unit *= 2
    return Heights(begin[is_first], starts // unit, total // unit, unit)


def _add_blocks(packed: Packing, page: SnapshotPage, heights: Heights) -> None:
    blocks = page.replay.blocks
    packed.add("birth", blocks.birth, is_sorted=True)
    packed.add("life", blocks.death - blocks.birth)
    packed.add("y", heights.at(blocks.address))
    packed.add("size", blocks.size_bytes // heights.unit_bytes)
    packed.add("rounding", blocks.size_bytes - blocks.requested_bytes)
    packed.add("stack", blocks.stack)
    packed.add("is_exact", blocks.is_exact)
    packed.add("stream", np.unique(blocks.stream, return_inverse=True)[1])
    if page.category is not None:
        packed.add("category", page.category)
    if page.module is not None:
        packed.add("module", page.module)
    times = page.snapshot.events_of(page.device).time_us
    if len(times) and times[0] > 0:
        packed.add("time", np.maximum.accumulate(times) - times[0], is_sorted=True)


def _add_segments(packed: Packing, page: SnapshotPage, heights: Heights) -> None:
    segments, table = page.replay.segments, page.snapshot.segments
    packed.add("segment_birth", segments.birth, is_sorted=True)
    packed.add("segment_life", segments.death - segments.birth)
    packed.add("segment_y", heights.at(segments.address))
    packed.add("segment_size", segments.size_bytes // heights.unit_bytes)
    packed.add("range_address", heights.address, is_sorted=True)
    packed.add("range_y", heights.height, is_sorted=True)
    here = np.flatnonzero(table.device == page.device)
    here = here[np.argsort(table.address[here])]
    packed.add("end_address", table.address[here], is_sorted=True)
    packed.add("end_bytes", table.total_bytes[here])
    packed.add("end_is_large", table.is_large[here])
    packed.add("end_is_expandable", table.is_expandable[here])
    packed.add("end_stream", table.stream[here])
    packed.add("end_pool", table.pool[here])


def _add_stacks(packed: Packing, snapshot: Snapshot, sites: Sites) -> dict[str, list[str]]:
    """Adds the columns of stacks; returns their part of the header."""
    stacks = snapshot.stacks
    files = packed.add_texts("frame_file", stacks.frames.file)
    packed.add("frame_line", stacks.frames.line)
    functions = packed.add_texts("frame_function", stacks.frames.function)
    packed.add("frame_rank", rank_frames(stacks))
    packed.add("stack_start", stacks.start, is_sorted=True)
    packed.add("stack_frame", stacks.frame)
    packed.add("stack_site", sites.of_stack)
    return {"files": files, "functions": functions}


def _header(page: SnapshotPage, sites: Sites, heights: Heights) -> dict[str, Any]:
    blocks = page.replay.blocks
    events = page.snapshot.events_of(page.device)
    oom = np.flatnonzero(events.action == Action.OOM)
    return {
        "title": page.title,
        "device": page.device,
        "num_events": page.replay.num_events,
        "unit_bytes": heights.unit_bytes,
        "capacity": page.capacity and {"bytes": page.capacity[0], "text": page.capacity[1]},
        "total_height": heights.total,
        "start_us": int(events.time_us[0]) if len(events) else 0,
        "peak_event": page.levels.peak_event,
        "peak_reserved_event": page.levels.peak_reserved_event,
        "out_of_memory": [[int(n), int(events.size_bytes[n]), int(events.address[n])] for n in oom],
        "streams": np.unique(blocks.stream).tolist(),
        "pools": [list(pool) for pool in page.snapshot.pools],
        "sites": list(sites.names),
        "modules": list(page.module_names),
        "groupings": _groupings(page, sites, blocks),
        "findings": [asdict(finding) for finding in page.findings],
        "summary": [list(pair) for pair in page.summary],
        "notes": [*page.notes, *([] if page.replay.num_events else [_NO_TRACE])],
        "contradictions": list(page.replay.contradictions),
    }


def _groupings(page: SnapshotPage, sites: Sites, blocks: Blocks) -> list[dict[str, Any]]:
    """The ways to colour blocks, the best first; blocks are weighted by bytes and lifetime."""
    weight = blocks.size_bytes * (blocks.death - blocks.birth).astype(np.float64)
    columns: list[dict[str, Any]] = []
    if page.category is not None:
        label = "category (guessed)" if page.is_guess else "category"
        columns.append({"by": "category", "label": label, "groups": category_groups()})
    if page.module is not None:
        groups = name_groups(page.module_names, page.module, weight, "other modules")
        columns.append({"by": "module", "label": "module", **groups})
    groups = name_groups(sites.names, sites.of_stack[blocks.stack], weight, "other call sites")
    columns.append({"by": "site", "label": "call site", **groups})
    return columns


_COLORS = tuple(
    look.color
    for category, look in CATEGORY_LOOKS.items()
    if category not in (Category.UNATTRIBUTED, Category.COMMUNICATION)
)
_OTHER_COLOR = CATEGORY_LOOKS[Category.UNATTRIBUTED].color


def category_groups() -> list[dict[str, str]]:
    """The groups of all categories, in the categories' order."""
    return [
        {"label": CATEGORY_LOOKS[category].label, "color": CATEGORY_LOOKS[category].color}
        for category in Category
    ]


def name_groups(
    names: Sequence[str], of_block: NDArray[Any], bytes_of_block: NDArray[Any], other: str
) -> dict[str, Any]:
    """Makes groups of the names with the most bytes, and one group for all others.

    Args:
        names: the names of modules or sites.
        of_block: (num_blocks,) the number of each block's name.
        bytes_of_block: (num_blocks,) the bytes to rank by.
        other: the name of the last group.
    """
    sums = np.zeros(len(names), dtype=np.float64)
    np.add.at(sums, of_block, bytes_of_block)
    top = [int(number) for number in np.argsort(-sums, kind="stable")[: len(_COLORS)]]
    top = [number for number in top if sums[number] > 0]
    group_of = {number: group for group, number in enumerate(top)}
    groups = [
        {"label": names[number] or "(none)", "color": color}
        for number, color in zip(top, _COLORS, strict=False)
    ]
    return {
        "groups": [*groups, {"label": other, "color": _OTHER_COLOR}],
        "group_of_name": [group_of.get(number, len(top)) for number in range(len(names))],
    }
