"""Who owns the memory of a test at its peak, from what the phantom recorded.

owned = find_owned(recorder, directory)
owned.categories["activation"], owned.modules, owned.places[0]
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ullage.explain.owners.modules import ModuleShare
    from ullage.explain.snapshot import DeviceSnapshot, SiteShare, SnapshotReport
    from ullage.log.model import DeviceTotals
    from ullage.players.inside.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Place:
    """A line of code, and what was allocated there and lived at a moment; "" is not a line of
    Python, as in backward.
    """

    where: str
    category: str
    size_bytes: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Owned:
    """The bytes of one device, by owner.

    Attributes:
        categories: at the peak, the largest first.
        modules: likewise, by path; "" is the outermost, and what belongs to none is left out.
        groups: likewise, those whose paths differ in numbers alone as one, such as "layers.*.mlp".
        places: likewise, by line of code.
        left: what still is allocated, by line of code, the largest first.
        used_bytes: of the whole device at the peak: reserved, the driver's context and libraries.
        requested_bytes: the most that the program asked for at once.
        basis: "exact", or "assumed".
        assumed: and what was.
        torch, cuda: the versions that this is of.
    """

    categories: Mapping[str, int]
    modules: Mapping[str, int]
    groups: Mapping[str, int]
    places: tuple[Place, ...]
    left: tuple[Place, ...]
    used_bytes: int
    requested_bytes: int
    basis: str
    assumed: tuple[str, ...]
    torch: str
    cuda: str
    allocator: str


NOTHING = Owned({}, {}, {}, (), (), 0, 0, "exact", (), "", "", "")


def find_owned(recorder: Recorder, directory: Path) -> Owned:
    """Explains what a watched process has done so far; it goes on afterwards.

    Args:
        recorder: of this process.
        directory: for a file that is gone afterwards.
    """
    from ullage.explain.snapshot import explain_snapshot
    from ullage.log.snapshot_reader import read_snapshot

    path = directory / "so-far.pickle"
    if not recorder.show(path):
        return NOTHING
    try:
        report = explain_snapshot(read_snapshot(path))
    finally:
        path.unlink(missing_ok=True)
    if not report.devices:
        return NOTHING
    return _owned(report, max(report.devices, key=lambda device: device.peak_allocated_bytes))


def _owned(report: SnapshotReport, device: DeviceSnapshot) -> Owned:
    from ullage.explain.basis import allocator_basis
    from ullage.explain.owners.modules import merge_numbered
    from ullage.explain.snapshot import share_sites

    last = len(device.levels.allocated_bytes) - 2  # level 0 is before the first event
    left = share_sites(device.replay, device.owners, report.sites, last)
    record, totals = report.record, device.totals
    basis = None if record is None else allocator_basis([record])
    by_size = sorted(device.owners_at_peak.items(), key=lambda pair: -pair[1])
    return Owned(
        categories={category.value: size for category, size in by_size if size},
        modules=_named(device.modules_at_peak),
        groups=_named(merge_numbered(device.modules_at_peak)),
        places=_places(device.sites_at_peak),
        left=_places(left),
        used_bytes=0 if totals is None else _used(totals),
        requested_bytes=0 if totals is None else totals.peak_requested_bytes,
        basis="exact" if basis is None else basis.kind.value,
        assumed=() if basis is None else basis.names,
        torch="" if record is None else record.torch,
        cuda="" if record is None else record.cuda or "",
        allocator=os.environ.get("PYTORCH_ALLOC_CONF")
        or os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
    )


def _named(shares: Sequence[ModuleShare]) -> dict[str, int]:
    return {share.path: share.size_bytes for share in shares if share.path is not None}


def _used(totals: DeviceTotals) -> int:
    return totals.peak_reserved_bytes + totals.context_bytes + totals.non_torch_bytes


def _places(shares: Sequence[SiteShare]) -> tuple[Place, ...]:
    from ullage.explain.owners.sites import UNKNOWN_SITE

    return tuple(
        Place(
            "" if share.site == UNKNOWN_SITE else share.site,
            share.category.value,
            share.size_bytes,
            share.num_blocks,
        )
        for share in shares
    )
