"""The figures of a run as entries of the lock: peaks, growth, and the owners at the peak.

measured = measure(run.report, snapshots, key_of)
measured["rank=3"].entry.peaks.allocated_bytes
measured["rank=3"].lines["model.py in forward"]         # (70,)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from ullage.explain.compare.changes import LINE
from ullage.explain.device import DeviceReport
from ullage.explain.moments.course import StepSource
from ullage.explain.moments.growth import step_growth
from ullage.explain.owners.modules import merge_numbered
from ullage.explain.rules.registry import find_findings
from ullage.explain.run import Process, RunReport
from ullage.explain.snapshot import DeviceSnapshot, SnapshotReport
from ullage.ground.protocol.plain import Mark
from ullage.verbs.check.gate.lock import Entry, Key, Peaks

# How the lock calls what was allocated outside of all modules; no module can have this path.
OUTSIDE = "(outside)"
# Modules and places that hold less than this share of the peak are not listed.
_LISTED_SHARE = 0.001


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one device.

    Attributes:
        entry: as in the lock.
        lines: of each place, in its file as it is now, that with the most bytes first.
        full_after_steps: after how many steps more the device is full, if it grows.
        snapshot: the file that tells more; None where it is not here.
    """

    entry: Entry
    lines: Mapping[str, tuple[int, ...]]
    full_after_steps: int | None = None
    snapshot: Annotated[Path | None, Mark.NO_KEY] = None


def measure(
    report: RunReport,
    snapshots: Sequence[SnapshotReport | None],
    key_of: Callable[[int | None], Key],
    project: str = "",
) -> dict[str, Measured]:
    """The figures of each device, by rank and index; "" where it is the only one.

    Args:
        report: of a run that went through.
        snapshots: of each of its processes, explained; None where none was kept.
        key_of: what the figures of a rank hold for; None: not a rank.
        project: the name of the program's directory, which goes before no file's name.
    """
    pairs = list(_pairs(report))
    figures: dict[str, Measured] = {}
    for process, device in pairs:
        number = report.processes.index(process)
        snapshot = snapshots[number] if number < len(snapshots) else None
        name, copies = _name(device, pairs), 1
        while name in figures:  # two processes on one device
            copies += 1
            name = ",".join(filter(None, (_name(device, pairs), f"process={copies}")))
        measured = _measure(device, report, snapshot, key_of(device.rank), project)
        figures[name] = replace(
            measured, snapshot=None if process.snapshot is None else Path(process.snapshot)
        )
    return figures


def _pairs(report: RunReport) -> Iterator[tuple[Process, DeviceReport]]:
    used = (d for d in report.devices if d.totals.peak_reserved_bytes or d.totals.non_torch_bytes)
    for device in used:
        yield next(
            (process, device)
            for process in report.processes
            if any(totals is device.totals for totals in process.record.devices)
        )


def _name(device: DeviceReport, pairs: Sequence[tuple[Process, DeviceReport]]) -> str:
    """Rank and device index, where they differ."""
    parts = []
    if len({other.rank for _, other in pairs}) > 1:
        parts.append(f"rank={device.rank}")
    alike = {other.totals.index for _, other in pairs if other.rank == device.rank}
    if len(alike) > 1:
        parts.append(f"device={device.totals.index}")
    return ",".join(parts)


def _measure(
    device: DeviceReport,
    report: RunReport,
    snapshot: SnapshotReport | None,
    key: Key,
    project: str,
) -> Measured:
    totals, basis = device.totals, report.allocator_basis
    least = _LISTED_SHARE * totals.peak_allocated_bytes
    peak = None if snapshot is None else _seen(snapshot, totals.index)
    places, lines = _places(peak, project)
    modules = {
        OUTSIDE if share.path is None else share.path: share.size_bytes
        for share in merge_numbered(device.modules_at_peak)
    }
    findings = () if snapshot is None else find_findings(snapshot)
    if peak is not None and peak.course.source is StepSource.RECORD:
        # By how much a block is larger than was asked for depends on where the allocator finds it.
        blocks, index = peak.replay.blocks, totals.index
        growth = step_growth(device.steps, blocks, peak.owners, peak.course, index)
        device = replace(device, growth=growth)
    entry = Entry(
        key=key,
        peaks=Peaks(
            totals.peak_requested_bytes,
            totals.peak_allocated_bytes,
            totals.peak_reserved_bytes,
            device.peak_used_bytes,
        ),
        basis=basis.kind,
        assumed=basis.names,
        moment="" if peak is None else peak.course.describe(peak.peak_event),
        growth_bytes=None if device.growth is None else round(device.growth),
        categories={
            category.value: size for category, size in device.at_peak.by_category.items() if size
        },
        modules={path: size for path, size in modules.items() if size >= least},
        places={name: size for name, size in places.items() if size >= least},
        findings=tuple(sorted({f.rule.code for f in findings if f.device == totals.index})),
    )
    return Measured(entry, lines, device.full_after_steps)


def _seen(snapshot: SnapshotReport, index: int) -> DeviceSnapshot | None:
    return next((device for device in snapshot.devices if device.index == index), None)


def _places(
    device_snapshot: DeviceSnapshot | None, project: str
) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    """The bytes live at the peak by allocating function, with the lines."""
    sizes: dict[str, int] = {}
    lines: dict[str, dict[int, None]] = {}
    for share in (
        () if device_snapshot is None else device_snapshot.sites_at_peak
    ):  # the largest first
        line = LINE.search(share.site)
        if line is None:  # no Python stack
            continue
        name = LINE.sub(r"\2", share.site).removeprefix(f"{project}/" if project else "")
        sizes[name] = sizes.get(name, 0) + share.size_bytes
        lines.setdefault(name, {})[int(line[1])] = None
    return sizes, {name: tuple(line) for name, line in lines.items()}
