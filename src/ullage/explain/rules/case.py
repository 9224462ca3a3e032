"""The input of rules: one device of a snapshot, with the columns that several rules need."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ullage.explain.moments.course import Phase
from ullage.explain.moments.spikes import levels_without
from ullage.explain.owners.ownership import CATEGORIES, code_of
from ullage.explain.owners.sites import OPERATOR, has_python_file
from ullage.explain.snapshot import DeviceSnapshot, SnapshotReport
from ullage.explain.trial import Relief
from ullage.ground.units import MIB, format_bytes
from ullage.log.blocks import BoolArray
from ullage.log.model import Category
from ullage.log.record_schema import PRECISIONS
from ullage.log.snapshot import Action, Int64Array

# A finding has at least this share of the peak, and this many bytes.
MIN_FRAC = 0.03
MIN_BYTES = MIB
MIN_FREE_BYTES = 192 * MIB
"""Segments of 20 MiB leave this much free in any program."""
_LISTED = 3
_NODE = re.compile(r"\btorch::autograd::(generated::\w+Backward|Engine::)")


@dataclass(frozen=True, slots=True)
class Case:
    """One device of a snapshot.

    Attributes:
        report, device: of the snapshot.
        is_live: (num_blocks,) which blocks are live at the peak.
        region, step: of each block's birth: the stretch of the course, the steps that had ended.
        call: of each block, the number of its stack; equal stacks have the same.
    """

    report: SnapshotReport
    device: DeviceSnapshot
    is_live: BoolArray
    region: Int64Array
    step: Int64Array
    call: Int64Array

    @property
    def peak_bytes(self) -> int:
        """The most that was allocated."""
        return self.device.peak_allocated_bytes

    @property
    def is_known(self) -> bool:
        """True if owners and phases are known."""
        return self.device.owners.is_known and self.device.course.has_phases

    @property
    def size_bytes(self) -> Int64Array:
        """(num_blocks,) with rounding."""
        return self.device.replay.blocks.size_bytes

    @property
    def grad(self) -> BoolArray:
        """(num_blocks,) whether a forward pass that records gradients, or what followed it, bore
        the block.
        """
        return self.device.course.grad[self.region]

    @property
    def is_given_up(self) -> bool:
        """True if the peak is of a try that ran out of memory, which the program caught: it did
        without what it had made, as one that looks for the largest batch does.
        """
        device = self.device
        if device.shortage is None or not device.shortage.was_survived:
            return False
        events = self.report.snapshot.events_of(device.index)
        failed = np.flatnonzero(events.action == Action.OOM)
        later = failed[failed >= device.peak_event]
        steps = device.course.step_at(np.append(later[:1], device.peak_event))
        return len(steps) == 2 and bool(steps[0] == steps[1])

    def is_of(self, *categories: Category) -> BoolArray:
        """Which blocks belong to any of the categories."""
        return np.isin(self.device.owners.category, [code_of(category) for category in categories])

    def may_be(self, *precisions: str) -> BoolArray:
        """Which blocks hold numbers of any of these types, as far as it is known."""
        codes = [PRECISIONS.index(name) for name in ("", *precisions)]
        known = self.device.owners.precision
        return np.ones(len(self.is_live), np.bool_) if known is None else np.isin(known, codes)

    def born_in(self, *phases: Phase) -> BoolArray:
        """Which blocks came in any of the phases."""
        return np.isin(self.device.course.phase[self.region], phases)

    def sum(self, mask: BoolArray) -> int:
        """The bytes of blocks."""
        return int(self.size_bytes[mask].sum())

    def gain(self, mask: BoolArray, death: Int64Array | None = None) -> int:
        """By how much the peak were lower without some blocks, or had they died at `death`."""
        numbers, ends = np.flatnonzero(mask), None if death is None else death[mask]
        blocks, levels = self.device.replay.blocks, self.device.levels
        return self.peak_bytes - int(levels_without(blocks, levels, numbers, ends).max())

    def relief(
        self,
        mask: BoolArray,
        death: Int64Array | None = None,
        *,
        left_frac: float = 0.0,
        is_whole: bool = True,
    ) -> Relief:
        """The relief of a change that removes some blocks, ends each at `death`, or leaves a part.

        is_whole: whether the change does nothing else to memory.
        """
        numbers = np.flatnonzero(mask)
        ends = None if death is None else death[numbers]
        return Relief(numbers, ends, left_frac, is_whole)

    def is_worth(self, num_bytes: int, frac: float = MIN_FRAC) -> bool:
        """True if this many bytes are worth telling."""
        return num_bytes >= MIN_BYTES and num_bytes >= frac * self.peak_bytes

    def share(self, num_bytes: int) -> str:
        """A part of the peak in words: "1.2 GiB (34 % of the peak)"."""
        percent = 100 * num_bytes / max(self.peak_bytes, 1)
        return f"{format_bytes(num_bytes)} ({percent:.0f} % of the peak)"

    def site(self, block: int) -> str:
        """The line that needed a block, and the user's own line where that is another."""
        sites, stack = self.report.sites, self.device.replay.blocks.stack[block]
        place, caller = int(sites.of_stack[stack]), int(sites.caller[stack])
        name = sites.names[place]
        if place == 0:
            if self.device.replay.blocks.birth[block] < 0:
                return "from before the trace"
            phase = Phase(int(self.device.course.phase[self.region[block]]))
            if self.device.course.has_phases and phase is Phase.BACKWARD:
                return "in backward, which has no Python stack"
            return "no stack was recorded"
        return name if caller in (0, place) else f"{name}, called from {sites.names[caller]}"

    def list_sites(self, blocks: Int64Array) -> tuple[str, ...]:
        """The sites of blocks with most bytes: "1.2 GiB in 12 blocks: train.py:31 in main"."""
        groups: dict[str, list[int]] = {}
        for block in blocks.tolist():
            groups.setdefault(f": {self.site(block)}", []).append(block)
        return self.list_groups(groups)

    def list_groups(
        self, groups: Mapping[str, Sequence[int]], others: str = "at {} other places"
    ) -> tuple[str, ...]:
        """The groups of blocks with most bytes, by what is said of each."""
        rows = sorted(
            ((int(self.size_bytes[[*blocks]].sum()), len(blocks), text)
             for text, blocks in groups.items()),
            key=lambda row: -row[0],
        )  # fmt: skip
        lines = [
            f"{format_bytes(size)} in {count} block{'s' * (count > 1)}{text}"
            for size, count, text in rows[:_LISTED]
        ]
        rest = sum(size for size, _, _ in rows[_LISTED:])
        if rest:
            lines.append(f"{format_bytes(rest)} {others.format(len(rows) - _LISTED)}")
        return tuple(lines)

    def list_holders(self, blocks: Int64Array) -> tuple[str, ...]:
        """By which name the program holds most of some blocks, where that was recorded."""
        recorded = self.device.recorded
        name = None if recorded is None else recorded.holders.name(blocks.tolist())
        return () if name is None else (f"held by {name}",)

    def calls_backward(self) -> BoolArray:
        """(num_blocks,) which blocks' stacks hold a node of autograd's graph: where phases are not
        known, that alone says that backward made them.
        """
        return self._holds(lambda _, name: _NODE.search(name) is not None)

    def calls(self, pattern: re.Pattern[str]) -> BoolArray:
        """(num_blocks,) which blocks' stacks hold a Python function whose name matches, or an
        operator of torch's ("cross_entropy_loss").
        """
        return self._holds(lambda file, name: _is_call(file, name, pattern))

    def _holds(self, is_meant: Callable[[str, str], bool]) -> BoolArray:
        """(num_blocks,) which blocks' stacks hold such a frame, by its file and function."""
        stacks = self.report.snapshot.stacks
        hits = np.array([*map(is_meant, stacks.frames.file, stacks.frames.function)], np.bool_)
        inside = np.append(0, np.cumsum(hits[stacks.frame]))
        of_stack = inside[stacks.start[1:]] > inside[stacks.start[:-1]]
        mask: BoolArray = of_stack[self.device.replay.blocks.stack]
        return mask


def _is_call(file: str, name: str, pattern: re.Pattern[str]) -> bool:
    if has_python_file(file):
        return pattern.search(name.rpartition(".")[2]) is not None  # of a module its last name
    operator = OPERATOR.search(name)
    return operator is not None and pattern.search(operator[1]) is not None


def make_case(report: SnapshotReport, device: DeviceSnapshot) -> Case:
    """The columns of one device."""
    blocks = device.replay.blocks
    return Case(
        report=report,
        device=device,
        is_live=blocks.is_live(device.peak_event),
        region=device.course.region_at(blocks.birth),
        step=device.course.step_at(blocks.birth),
        call=report.sites.call[blocks.stack].astype(np.int64),
    )


def bytes_of(case: Case, category: Category) -> int:
    """The bytes that a category owned at the peak."""
    return case.device.owners_at_peak.get(category, 0)


def category_of(case: Case, block: int) -> Category:
    """The category of a block."""
    return CATEGORIES[int(case.device.owners.category[block])]
