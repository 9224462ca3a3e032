"""Recorded differences between two snapshots: the torch version, the GPU, the arguments, the
allocator's settings, the optimizer, activation checkpointing.

The first three are known where ullage recorded both snapshots. The optimizer is known from the file
of torch.optim, and checkpointing from the file of torch.utils, whose functions allocated memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

from ullage.explain.snapshot import DeviceSnapshot, SnapshotReport
from ullage.log.model import Record

_OPTIMIZER = re.compile(r"(?:^|/)torch/optim/([a-z]\w*)\.py$")
_NOT_OPTIMIZERS = frozenset({"optimizer", "lr_scheduler", "swa_utils"})
_CHECKPOINT = re.compile(r"(?:^|/)torch/utils/checkpoint\.py$")
CHECKPOINTING, OPTIMIZER = "activation checkpointing", "optimizer"


@dataclass(frozen=True, slots=True)
class Difference:
    """A property with different values before and after; None where it has no value."""

    name: str
    before: object
    after: object


def find_differences(
    before: tuple[SnapshotReport, DeviceSnapshot], after: tuple[SnapshotReport, DeviceSnapshot],
    early: int | None = None,
) -> Iterator[Difference]:  # fmt: skip
    """Yields all differences, the most informative first. `early` is the side that ended before its
    first step had: what it would have used after that is not known.
    """
    reports = before[0], after[0]
    if reports[0].record is not None and reports[1].record is not None:
        yield from _compare_records(reports[0].record, reports[1].record)
    totals = before[1].totals, after[1].totals
    if totals[0] is not None and totals[1] is not None:
        yield from _unless_same("GPU", totals[0].name, totals[1].name)
    # If one snapshot has no stacks, the stacks of the other cannot be compared.
    if all(len(report.snapshot.stacks.frames.file) > 1 for report in reports):
        files = [report.snapshot.stacks.frames.file for report in reports]
        if early is None:
            matches = [[*filter(None, map(_OPTIMIZER.search, each))] for each in files]
            names = [sorted({match[1] for match in row} - _NOT_OPTIMIZERS) for row in matches]
            yield from _unless_same(OPTIMIZER, *(", ".join(each) or None for each in names))
        used = ["on" if any(map(_CHECKPOINT.search, each)) else "off" for each in files]
        if early is None or used[early] == "on":
            yield from _unless_same(CHECKPOINTING, *used)
    settings = [report.snapshot.settings for report in reports]
    for name in sorted({*settings[0], *settings[1]}):
        yield from _unless_same(f"setting {name}", settings[0].get(name), settings[1].get(name))


def _unless_same(name: str, before: object, after: object) -> Iterator[Difference]:
    if before != after:
        yield Difference(name, before, after)


def _compare_records(before: Record, after: Record) -> Iterator[Difference]:
    yield from _unless_same("torch", before.torch, after.torch)
    matcher = SequenceMatcher(None, before.argv, after.argv, autojunk=False)
    for action, a, b, c, d in matcher.get_opcodes():
        if action == "equal":
            continue
        # A value alone means little: the option before it is included too.
        start = a > 0 and before.argv[a - 1].startswith("-")
        old, new = before.argv[a - start : b], after.argv[c - start : d]
        yield Difference("arguments", " ".join(old) or None, " ".join(new) or None)
