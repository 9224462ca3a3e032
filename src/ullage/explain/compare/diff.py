"""Compares two snapshots: the changes by phase, by category, by module and by source line, and
their causes.

    report = diff_snapshots(explain_snapshot(before), explain_snapshot(after))
    report.changed_bytes, report.causes[0].text
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import numpy as np

from ullage.explain.compare.agreement import Term, find_terms
from ullage.explain.compare.causes import Cause, Evidence, find_causes
from ullage.explain.compare.changes import (
    Change,
    ModuleChange,
    Moment,
    Side,
    compare_categories,
    compare_modules,
    compare_sites,
)
from ullage.explain.compare.differences import Difference, find_differences
from ullage.explain.compare.totals import Totals
from ullage.explain.moments.phase_peaks import HELD, PhasePeak, find_phase_peaks
from ullage.explain.owners.owners import sum_by_category
from ullage.explain.owners.ownership import CATEGORIES
from ullage.explain.rules.registry import find_findings
from ullage.explain.rules.rule import Finding
from ullage.explain.snapshot import DeviceSnapshot, SnapshotReport
from ullage.ground.protocol.plain import As, Mark, figure

_MAX_SITES: Final = 12  # of a phase, in a document


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """A phase that both runs have, each run at the peak of the phase.

    Attributes:
        name: the name of the phase, such as "backward".
        before_bytes, after_bytes: the bytes allocated at the peak of the phase.
        by_category: every category that occurs in either run there.
        by_site: every site that changed, the largest change first.
    """

    name: str
    before_bytes: int
    after_bytes: int
    by_category: tuple[Change, ...]
    by_site: Annotated[tuple[Change, ...], Mark.NO_KEY]

    @figure
    def largest_sites(self) -> Annotated[tuple[Change, ...], As("by_site")]:
        """The sites that changed most."""
        return self.by_site[:_MAX_SITES]

    @figure
    def changed_bytes(self) -> int:
        """The change; positive if the second run has more."""
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, slots=True)
class DiffReport:
    """A comparison of two snapshots, each by the device with the highest peak.

    Attributes:
        sides: the reports that were compared; empty where one is a document without its snapshot.
        before, after: the devices; None likewise.
        findings: the findings of the rules in each snapshot.
        phases: the phases that both have, in order; empty where one of them has none.
        by_category: every category that occurs in either snapshot at its peak.
        by_module: every module that changed at the peak; empty unless ullage recorded both.
        by_site: every site that changed at the peak, the largest change first.
        differences: recorded differences, such as the torch version and the allocator's settings.
        causes: the causes of the change, the most conclusive first; empty where nothing changed.
        is_known: whether the categories of both snapshots were recorded, not guessed.
        terms: of a prediction and what was measured, term by term; empty for other pairs.
        totals: of the peaks that are compared.
        until: where the side that failed in its first step did, such as "forward, where the second
            ran out of memory": both are compared as far as that; empty: to the end.
    """

    SCHEMA: ClassVar[str] = "ullage.diff/1"

    totals: Annotated[tuple[Totals, Totals], Mark.NO_KEY]
    by_category: tuple[Change, ...]
    sides: Annotated[tuple[SnapshotReport, ...], Mark.NO_KEY] = ()
    before: Annotated[DeviceSnapshot | None, Mark.NO_KEY] = None
    after: Annotated[DeviceSnapshot | None, Mark.NO_KEY] = None
    findings: Annotated[tuple[tuple[Finding, ...], tuple[Finding, ...]], Mark.NO_KEY] = ((), ())
    phases: tuple[PhaseChange, ...] = ()
    by_module: tuple[ModuleChange, ...] = ()
    by_site: tuple[Change, ...] = ()
    differences: tuple[Difference, ...] = ()
    causes: tuple[Cause, ...] = ()
    is_known: Annotated[bool, Mark.NO_KEY] = True
    terms: Annotated[tuple[Term, ...], As("measured")] = ()
    until: Annotated[str, As("compared_until"), Mark.NULL] = ""

    @figure
    def peaks(self) -> Annotated[Mapping[str, Totals], Mark.FLAT]:
        """The peaks of both sides."""
        return {"before": self.totals[0], "after": self.totals[1]}

    @figure
    def categories_are(self) -> str:
        """How the owners are known."""
        return "known" if self.is_known else "guessed"

    @figure
    def changed_bytes(self) -> Annotated[int, As("changed_allocated_bytes")]:
        """The change of the peak of allocated bytes."""
        return self.totals[1].peak_allocated_bytes - self.totals[0].peak_allocated_bytes

    @figure
    def changed_reserved_bytes(self) -> int:
        """The change of the peak of reserved bytes."""
        return self.totals[1].peak_reserved_bytes - self.totals[0].peak_reserved_bytes

    @figure
    def changed_outside_bytes(self) -> int | None:
        """The change of what is outside PyTorch's allocator; None where a side does not tell."""
        before, after = (side.outside_bytes for side in self.totals)
        return None if before is None or after is None else after - before


def diff_totals(before: SnapshotReport | Totals, after: SnapshotReport | Totals) -> DiffReport:
    """Compares the peaks alone, where a side is a document without its snapshot."""
    first, second = (
        side if isinstance(side, Totals) else _totals_of(_peak_of(side, _highest(side), None))
        for side in (before, after)
    )
    changes = []
    for category in CATEGORIES:
        sides = [Side(side.by_category.get(category, 0), 0) for side in (first, second)]
        if any(side.size_bytes for side in sides):
            changes.append(Change(category.value, category, sides[0], sides[1]))
    return DiffReport(totals=(first, second), by_category=tuple(changes))


def diff_snapshots(before: SnapshotReport, after: SnapshotReport) -> DiffReport:
    """Compares two snapshots, each of which contains device memory."""
    first, second = _highest(before), _highest(after)
    early, lasts = _find_early((before, first), (after, second))
    peaks = _peak_of(before, first, lasts[0]), _peak_of(after, second, lasts[1])
    by_site = tuple(compare_sites(*peaks))
    by_category = tuple(compare_categories(*peaks))
    phases = find_phase_peaks(first, lasts[0]), find_phase_peaks(second, lasts[1])
    differences = tuple(find_differences((before, first), (after, second), early))
    findings = find_findings(before), find_findings(after)
    is_held = all(HELD in side for side in phases)
    held_moments = _moments(peaks, phases[0][HELD], phases[1][HELD]) if is_held else peaks
    until = ""
    if early is not None:
        short = peaks[early].device
        where = short.course.describe(_last_allocation(short)) or "its end"
        how = "ran out of memory" if short.shortage is not None else "failed"
        until = f"{where}, where the {('first', 'second')[early]} {how}"
    return DiffReport(
        sides=(before, after),
        before=first,
        after=second,
        findings=findings,
        phases=tuple(_compare_phases(peaks, phases)),
        by_category=by_category,
        by_module=tuple(compare_modules(*peaks)),
        by_site=by_site,
        differences=differences,
        causes=find_causes(Evidence(*peaks, held_moments, findings, by_site, differences, early)),
        is_known=first.owners.is_known and second.owners.is_known,
        terms=find_terms(*peaks, by_category),
        totals=(_totals_of(peaks[0]), _totals_of(peaks[1])),
        until=until,
    )


def _highest(report: SnapshotReport) -> DeviceSnapshot:
    return max(report.devices, key=lambda device: device.peak_allocated_bytes)


def _find_early(
    *sides: tuple[SnapshotReport, DeviceSnapshot],
) -> tuple[int | None, list[int | None]]:
    """Finds the side whose program failed before its first step had ended, where the other's went
    on, and the last event of each side that is compared: on the other side the one before it
    allocates more blocks than the first did, and at most the end of the same phase.
    """
    lasts: list[int | None] = [None, None]
    steps = [device.course.num_steps for _, device in sides]
    if (steps[0] == 0) == (steps[1] == 0):
        return None, lasts
    early = 0 if steps[0] == 0 else 1
    (report, short), (_, other) = sides[early], sides[1 - early]
    is_short = short.shortage is not None and not short.shortage.was_survived
    if not is_short and (report.record is None or report.record.exit.code == 0):
        return None, lasts
    births = [np.sort(device.replay.blocks.birth) for device in (short, other)]
    count = int((births[0] >= 0).sum())
    later = births[1][births[1] >= 0][count:]
    last = int(later[0]) - 1 if len(later) else other.replay.num_events - 1
    region = int(short.course.region_at(np.array([_last_allocation(short)]))[0])
    begins = other.course.begin[region + 1 :]
    if short.course.has_phases and other.course.has_phases and len(begins):
        last = min(last, int(begins[0]) - 1)
    lasts[1 - early] = last
    return early, lasts


def _last_allocation(device: DeviceSnapshot) -> int:
    """The event; what comes after it in a program that failed lets its blocks go."""
    return int(device.replay.blocks.birth.max(initial=-1))


def _peak_of(report: SnapshotReport, device: DeviceSnapshot, last: int | None) -> Moment:
    peak = Moment(report, device, device.peak_event, last)
    levels = device.levels.allocated_bytes[: _end(peak)]
    return peak if last is None else peak._replace(event=int(levels.argmax()) - 1)


def _totals_of(peak: Moment) -> Totals:
    device, totals = peak.device, peak.device.totals
    blocks = device.replay.blocks
    return Totals(
        device.index,
        int(device.levels.allocated_bytes[peak.event + 1]),
        int(device.levels.reserved_bytes[: _end(peak)].max()),
        None if totals is None else totals.all_outside_bytes,
        device.replay.num_events,
        sum_by_category(device.owners, blocks.size_bytes, blocks.is_live(peak.event)),
    )


def _end(moment: Moment) -> int | None:
    """The end of the levels that are compared: one more than the events, as they begin before."""
    return None if moment.last is None else moment.last + 2


def _moments(
    peaks: tuple[Moment, Moment], before: PhasePeak, after: PhasePeak
) -> tuple[Moment, Moment]:
    return peaks[0]._replace(event=before.event), peaks[1]._replace(event=after.event)


def _compare_phases(
    peaks: tuple[Moment, Moment], phases: tuple[dict[str, PhasePeak], dict[str, PhasePeak]]
) -> Iterator[PhaseChange]:
    for name, before in phases[0].items():
        after = phases[1].get(name)
        if after is not None:
            moments = _moments(peaks, before, after)
            yield PhaseChange(
                name=name,
                before_bytes=before.size_bytes,
                after_bytes=after.size_bytes,
                by_category=tuple(compare_categories(*moments)),
                by_site=tuple(compare_sites(*moments)),
            )
