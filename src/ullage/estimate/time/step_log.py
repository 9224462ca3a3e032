"""The log of work that a played step would leave: its kernels, as often as in the real step.

Two steps are laid out, and the second is timed: the first gives the host its lead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from ullage.estimate.training.eager.arena import Log
from ullage.estimate.training.eager.kernels import Kernel, Kind
from ullage.estimate.training.totals import Stretch, find_stretches
from ullage.trace.record_schema import WORK_MARKS
from ullage.trace.work_log import ENTRY, EntryKind, WorkKind, WorkLog, WorkRow

_BUCKET_BYTES: Final = 25 << 20  # of DDP (bucket_cap_mb); the first one has one MiB
_FIRST_BUCKET_BYTES: Final = 1 << 20
_REDUCES: Final = 2  # the stream of sums over ranks
_STEPS: Final = 2


class Block(NamedTuple):
    """Kernels of a part of the step, and how many times in a row it comes."""

    phase: str
    name: str
    repeats: int
    kernels: Sequence[Kernel]


@dataclass(frozen=True, slots=True)
class Program:
    """A log of work, and what it consists of.

    Attributes:
        log: of two steps; the name of each piece of work is its place in `kernels`.
        kernels: each distinct one.
        modules: the names of sections.
    """

    log: WorkLog
    kernels: tuple[Kernel, ...]
    modules: tuple[str, ...]


def read_stretches(
    log: Log, kernels: Sequence[tuple[int, Kernel]], num_passes: int, accumulation: int
) -> tuple[Block, ...]:
    """The parts of a step's passes, in order; the last pass that was played stands for the rest."""
    stretches = [row for row in find_stretches(log) if row.phase in ("forward", "backward")]
    begins = [row.begin for row in stretches]
    inside: list[list[Kernel]] = [[] for _ in stretches]
    for position, kernel in kernels:
        inside[max(0, bisect_right(begins, position) - 1)].append(kernel)
    blocks = [
        Block(row.phase, row.name, row.repeats, rows)
        for row, rows in zip(stretches, inside, strict=True)
    ]
    if accumulation <= num_passes or num_passes < 2:
        return tuple(blocks)
    last = _last_pass(stretches)
    return (*blocks[:last], *blocks[last:] * (accumulation - num_passes + 1))


def _last_pass(stretches: Sequence[Stretch]) -> int:
    """Where the last pass begins: with the last forward after a backward."""
    starts = [
        place
        for place in range(1, len(stretches))
        if (stretches[place - 1].phase, stretches[place].phase) == ("backward", "forward")
    ]
    return starts[-1] if starts else 0


def lay_out(blocks: Sequence[Block], optimizer: Sequence[Kernel], num_replicas: int) -> Program:
    """The log of two steps.

    Args:
        num_replicas: ranks that sum gradients as DDP does, in the last pass alone; 1: none do.
    """
    writer = _Writer()
    for number in range(_STEPS):
        writer.mark("step", number)
        last = max(
            (place for place, block in enumerate(blocks) if block.phase == "forward"), default=0
        )
        phase = ""
        for place, block in enumerate(blocks):
            if block.phase != phase:
                writer.mark(f"{block.phase}_begin", number)
                phase = block.phase
            ranks = num_replicas if place > last else 1
            for _ in range(block.repeats):
                writer.add(block, _sum_buckets(block.kernels, writer, ranks))
        if num_replicas > 1:
            writer.add(blocks[-1], writer.reduce(writer.waiting_bytes, num_replicas))
            writer.add(blocks[-1], [Kernel(Kind.RECORD, stream=_REDUCES)])
            writer.add(blocks[-1], [Kernel(Kind.WAIT, numbers=(_REDUCES,))])
        writer.mark("optimizer_begin", number)
        writer.add(Block("optimizer", "", 1, ()), optimizer)
        writer.mark("optimizer_end", number)
    writer.mark("step", _STEPS)
    return writer.program()


def _sum_buckets(kernels: Sequence[Kernel], writer: _Writer, ranks: int) -> Iterator[Kernel]:
    for kernel in kernels:
        if kernel.kind is not Kind.READY:
            yield kernel
        elif ranks > 1:
            num_bytes = kernel.operands[0]
            yield Kernel(Kind.JOIN, (num_bytes, num_bytes))  # into its bucket
            writer.waiting_bytes += num_bytes
            if writer.waiting_bytes >= writer.bucket_bytes:
                yield from writer.reduce(writer.waiting_bytes, ranks)


class _Writer:
    """Rows of a log.

    Attributes:
        waiting_bytes: gradients whose bucket is not full.
        bucket_bytes: of the bucket that is filled now.
    """

    def __init__(self) -> None:
        self.waiting_bytes = 0
        self.bucket_bytes = _FIRST_BUCKET_BYTES
        self._rows: list[tuple[int, ...]] = []
        self._numbers: dict[Kernel, int] = {}
        self._modules: dict[str, int] = {}
        self._records: dict[int, int] = {}

    def mark(self, name: str, number: int) -> None:
        """The program passes a moment."""
        self._rows.append((number, WORK_MARKS.index(name), 0, 0, 0, EntryKind.MARKED, 0))

    def reduce(self, num_bytes: int, ranks: int) -> Iterator[Kernel]:
        """Sums what waits over the ranks, as soon as it has been computed."""
        self.waiting_bytes, self.bucket_bytes = 0, _BUCKET_BYTES
        if num_bytes:
            yield Kernel(Kind.RECORD)
            yield Kernel(Kind.WAIT, numbers=(0,), stream=_REDUCES)
            yield Kernel(
                Kind.COLLECTIVE, (num_bytes,), (ranks,), name="all-reduce", stream=_REDUCES
            )

    def add(self, block: Block, kernels: Sequence[Kernel] | Iterator[Kernel]) -> None:
        scope = self._modules.setdefault(block.name, len(self._modules))
        for kernel in kernels:
            lane = kernel.stream
            if kernel.kind is Kind.RECORD:
                self._rows.append((0, 0, scope, 0, lane, EntryKind.RECORDED, 0))
                self._records[lane] = len(self._rows)
            elif kernel.kind is Kind.WAIT:
                record = self._records.get(kernel.numbers[0])
                if record is not None:
                    self._rows.append((record, 0, scope, 0, lane, EntryKind.WAITED, 0))
            elif kernel.kind is not Kind.READY:
                number = self._numbers.setdefault(kernel, len(self._numbers))
                self._rows.append((0, number, scope, 0, lane, EntryKind.GIVEN, 0))

    def program(self) -> Program:
        """All of it."""
        works = tuple(
            WorkRow(WorkKind.LIBRARY, -1, str(number), (0,), b"")
            for number in self._numbers.values()
        )
        entries = np.array(self._rows, dtype=ENTRY)
        log = WorkLog(0, entries, np.empty(0, dtype=ENTRY), works)
        return Program(log, tuple(self._numbers), tuple(self._modules))
