"""The peak of a run, from its snapshot or from a document that `-o` wrote: what of any two can be
compared.

    read_document(Path("run.json"))         # the snapshot that it names, or a Totals
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ullage.ground.errors import SnapshotError
from ullage.ground.parsing import parse_json, read_bounded
from ullage.ground.protocol.plain import Mark
from ullage.log.model import Category

_OUTSIDE = ("context_bytes", "non_torch_bytes", "other_processes_bytes")


@dataclass(frozen=True, slots=True)
class Totals:
    """The peak of a run, on the device where it is highest.

    Attributes:
        device: its index.
        peak_allocated_bytes, peak_reserved_bytes: of PyTorch's allocator.
        outside_bytes: the context, libraries and other processes; None where that is not known.
        num_events: of the trace; None where there is none.
        by_category: of the allocated bytes; they sum to the peak.
    """

    device: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    outside_bytes: int | None
    num_events: int | None
    by_category: Annotated[Mapping[Category, int], Mark.NO_KEY]


def read_document(path: Path) -> Path | Totals:
    """Returns the snapshot that a document of `ullage run` or `ullage explain` names, where it
    still is, or else what a run's document says; the path itself if it is not a document.

    Raises:
        SnapshotError: it is another document, or of a program that used no device.
    """
    try:
        with path.open("rb") as file:
            document = parse_json(read_bounded(path)) if file.read(1) == b"{" else None
    except (OSError, ValueError):
        document = None  # the reader of snapshots says what is wrong
    if not isinstance(document, dict) or "schema" not in document:
        return path
    snapshot = str(document.get("snapshot") or document.get("file"))
    for place in (Path(snapshot), path.parent / snapshot):
        if place.is_file():
            return place
    try:
        device = max(document["devices"], key=lambda device: device["peak_allocated_bytes"])
        sizes = {Category(name): int(size) for name, size in device["at_peak"].items()}
        allocated, reserved = device["peak_allocated_bytes"], device["peak_reserved_bytes"]
        outside_bytes = sum(int(device[name]) for name in _OUTSIDE)
        return Totals(device["index"], int(allocated), int(reserved), outside_bytes, None, sizes)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise SnapshotError(
            f"{str(path)!r} is a document {document['schema']!r} whose snapshot is gone; expected "
            "a snapshot, or a document of `ullage run`, which has the peak, too"
        ) from None
