"""The log of work that a played step would leave: its kernels, as often as in the real step.

csrc/play_log.c passes through the played log; each passage gives its kernels. Two steps are laid
out, and the second is timed: the first gives the host its lead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from ullage.log.record_schema import WORK_MARKS
from ullage.log.work_log import ENTRY, EntryKind, WorkLog
from ullage.players.eager.training.eager.kernels import Kernel, Kind
from ullage.players.eager.training.loop import Played
from ullage.players.eager.training.totals import Stretch, list_passages

_BUCKET_BYTES: Final = 25 << 20  # of DDP (bucket_cap_mb); the first one has one MiB
_FIRST_BUCKET_BYTES: Final = 1 << 20
_REDUCES: Final = 2  # the stream of sums over ranks
_STEPS: Final = 2
_PASSES: Final = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class Program:
    """A log of work, and what it consists of.

    Attributes:
        log: of two steps, without the works.
        kernels: each distinct one; rows have its place as their work.
        modules: the names of sections.
    """

    log: WorkLog
    kernels: tuple[Kernel, ...]
    modules: tuple[str, ...]


class _Passage(NamedTuple):
    phase: str
    name: str
    kernels: Sequence[Kernel]


def _list_passages(played: Played, accumulation: int) -> list[_Passage]:
    """The passages of a step, in order; the last pass that was played stands for the rest."""
    stretches = [its for its, _ in list_passages(played.log) if its.phase in _PASSES]
    inside: dict[Stretch, list[Kernel]] = {its: [] for its in stretches}
    places = [*inside]
    begins = [its.begin for its in places]
    for position, kernel in played.kernels:
        inside[places[max(0, bisect_right(begins, position) - 1)]].append(kernel)
    passages = [_Passage(its.phase, its.name, inside[its]) for its in stretches]
    if accumulation <= played.num_passes or played.num_passes < 2:
        return passages
    # The last pass begins with the last forward after a backward.
    phases = [passage.phase for passage in passages]
    last = max(
        (at for at in range(1, len(phases)) if phases[at - 1 : at + 1] == ["backward", "forward"]),
        default=0,
    )
    return passages + passages[last:] * (accumulation - played.num_passes)


def lay_out(
    played: Played, optimizer: Sequence[Kernel], accumulation: int, num_replicas: int
) -> Program:
    """The log of two steps.

    Args:
        accumulation: passes of a step.
        num_replicas: ranks that sum gradients as DDP does, in the last pass alone; 1: none do.
    """
    passages = _list_passages(played, accumulation)
    last = max((at for at, passage in enumerate(passages) if passage.phase == "forward"), default=0)
    rows: list[tuple[int, ...]] = []
    numbers: dict[Kernel, int] = {}
    modules: dict[str, int] = {}
    records: dict[int, int] = {}
    buckets = _Buckets()

    def mark(name: str, number: int) -> None:
        rows.append((number, WORK_MARKS.index(name), 0, 0, 0, EntryKind.MARKED, 0))

    def add(module: str, kernels: Iterable[Kernel]) -> None:
        scope = modules.setdefault(module, len(modules))
        for kernel in kernels:
            lane = kernel.stream
            if kernel.kind is Kind.RECORD:
                rows.append((0, 0, scope, 0, lane, EntryKind.RECORDED, 0))
                records[lane] = len(rows)
            elif kernel.kind is Kind.WAIT:
                if kernel.numbers[0] in records:
                    record = records[kernel.numbers[0]]
                    rows.append((record, 0, scope, 0, lane, EntryKind.WAITED, 0))
            elif kernel.kind is not Kind.READY:
                number = numbers.setdefault(kernel, len(numbers))
                rows.append((0, number, scope, 0, lane, EntryKind.GIVEN, 0))

    for step in range(_STEPS):
        mark("step", step)
        phase = ""
        for place, passage in enumerate(passages):
            if passage.phase != phase:
                phase = passage.phase
                mark(f"{phase}_begin", step)
            is_summed = num_replicas > 1 and place > last
            kernels = passage.kernels
            add(passage.name, buckets.fill(kernels, num_replicas) if is_summed else kernels)
        if num_replicas > 1:
            add(passages[-1].name, buckets.reduce(num_replicas))
            order = (Kernel(Kind.RECORD, stream=_REDUCES), Kernel(Kind.WAIT, numbers=(_REDUCES,)))
            add(passages[-1].name, order)
        mark("optimizer_begin", step)
        add("", optimizer)
        mark("optimizer_end", step)
    mark("step", _STEPS)
    log = WorkLog(0, np.array(rows, dtype=ENTRY), np.empty(0, dtype=ENTRY), ())
    return Program(log, tuple(numbers), tuple(modules))


class _Buckets:
    """DDP's buckets of gradients: how much waits in the present one, and what it holds."""

    def __init__(self) -> None:
        self.waiting_bytes = 0
        self.bucket_bytes = _FIRST_BUCKET_BYTES

    def fill(self, kernels: Sequence[Kernel], ranks: int) -> Iterator[Kernel]:
        """The kernels of a passage, and the sums of the buckets that it fills."""
        for kernel in kernels:
            if kernel.kind is not Kind.READY:
                yield kernel
                continue
            num_bytes = kernel.operands[0]
            yield Kernel(Kind.JOIN, (num_bytes, num_bytes))  # into its bucket
            self.waiting_bytes += num_bytes
            if self.waiting_bytes >= self.bucket_bytes:
                yield from self.reduce(ranks)

    def reduce(self, ranks: int) -> Iterator[Kernel]:
        """Sums what waits over the ranks, as soon as it has been computed."""
        num_bytes = self.waiting_bytes
        self.waiting_bytes, self.bucket_bytes = 0, _BUCKET_BYTES
        if num_bytes:
            yield Kernel(Kind.RECORD)
            yield Kernel(Kind.WAIT, numbers=(0,), stream=_REDUCES)
            yield Kernel(
                Kind.COLLECTIVE, (num_bytes,), (ranks,), name="all-reduce", stream=_REDUCES
            )
