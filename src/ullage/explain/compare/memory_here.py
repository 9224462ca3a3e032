"""The measured figures of this machine's GPU: its context, and the scratch of libraries.

memory = find_memory(report)            # of a DiffReport
memory if isinstance(memory, MeasuredMemory) else memory.reason
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from dataclasses import dataclass

from ullage.explain.compare.diff import DiffReport
from ullage.facts.gpus.catalog import find_by_device
from ullage.facts.gpus.measured_memory import MeasuredMemory
from ullage.ground.errors import SpecError
from ullage.ground.units import format_bytes
from ullage.log.blocks import find_blocks, read_blocks
from ullage.log.measured import Measured
from ullage.log.model import Record

_EXCHANGES = "NCCL"


@dataclass(frozen=True, slots=True)
class NotKnown:
    """Why a record does not tell; a sentence's end, after "because"."""

    reason: str


def find_memory(report: DiffReport) -> MeasuredMemory | NotKnown | None:
    """The figures of the measured side; None: the pair is not a prediction with its measurement."""
    if not report.terms:
        return None
    pairs = zip(report.sides, (report.before, report.after), strict=True)
    for side, device in pairs:
        record, totals = side.record, None if device is None else device.totals
        if device is None or record is None or record.measured is None or totals is None:
            continue
        reason = _doubt(record.measured, device.index, totals.context_bytes)
        if reason is not None:
            return NotKnown(reason)
        try:
            gpu = find_by_device(totals.name, totals.total_bytes)
        except SpecError as error:
            return NotKnown(str(error))
        date = datetime.datetime.fromtimestamp(record.started_s, datetime.UTC).date()
        return MeasuredMemory(
            gpu=gpu.slug,
            device=totals.name,
            driver=record.measured.driver,
            torch=record.torch,
            date=date.isoformat(),
            context_bytes=totals.context_bytes,
            workspace_bytes=_largest_workspaces(record, device.index),
        )
    return None


def _doubt(measured: Measured, device: int, context_bytes: int) -> str | None:
    """Why the context is not that of one process on a GPU; None: it is."""
    if measured.is_phantom:
        return "the GPU of the record was the phantom: its context is the catalogue's own figure"
    if device >= len(measured.num_others) or (num_others := measured.num_others[device]) is None:
        return (
            f"nothing tells whether the {format_bytes(context_bytes)} in use beside PyTorch "
            "include the memory of other processes"
        )
    if num_others:
        others = "another process" if num_others == 1 else f"{num_others} other processes"
        return (
            f"the {format_bytes(context_bytes)} in use beside PyTorch include the memory of "
            f"{others}; record again with the GPU to yourself"
        )
    return "no context was measured" if not context_bytes else None


def _largest_workspaces(record: Record, device: int) -> dict[str, int]:
    blocks, handed = read_blocks(record), record.workspaces
    rows = find_blocks(blocks, handed.position, handed.device, handed.address)
    largest: dict[str, int] = defaultdict(int)
    for row, place, library in zip(
        rows.tolist(), handed.device.tolist(), handed.library, strict=True
    ):
        if row < len(blocks) and place == device and library != _EXCHANGES:
            largest[library] = max(largest[library], int(blocks.size_bytes[row]))
    return dict(sorted(largest.items()))
