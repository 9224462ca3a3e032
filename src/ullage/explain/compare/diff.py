"""Compares two snapshots: the changes by phase, by category, by module and by source line, and
their causes.

    report = diff_snapshots(explain_snapshot(before), explain_snapshot(after))
    report.changed_bytes, report.causes[0].text
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ullage.explain.compare.agreement import Run, Term, find_terms
from ullage.explain.compare.causes import Cause, Evidence, find_causes
from ullage.explain.compare.changes import (
    Change,
    ModuleChange,
    Moment,
    compare_categories,
    compare_modules,
    compare_sites,
)
from ullage.explain.compare.differences import Difference, find_differences
from ullage.explain.moments.phase_peaks import HELD, PhasePeak, find_phase_peaks
from ullage.explain.rules.registry import find_findings
from ullage.explain.rules.rule import Finding
from ullage.explain.snapshot import DeviceSnapshot, SnapshotReport


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
    by_site: tuple[Change, ...]

    @property
    def changed_bytes(self) -> int:
        """The change; positive if the second run has more."""
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, slots=True)
class DiffReport:
    """A comparison of two snapshots, each by the device with the highest peak.

    Attributes:
        sides: the reports that were compared.
        before, after: the devices.
        findings: the findings of the rules in each snapshot.
        phases: the phases that both have, in order; empty where one of them has none.
        by_category: every category that occurs in either snapshot at its peak.
        by_module: every module that changed at the peak; empty unless ullage recorded both.
        by_site: every site that changed at the peak, the largest change first.
        differences: recorded differences, such as the torch version and the allocator's settings.
        causes: the causes of the change, the most conclusive first; empty where nothing changed.
        is_known: whether the categories of both snapshots were recorded, not guessed.
        terms: of a prediction and what was measured, term by term; empty for other pairs.
    """

    sides: tuple[SnapshotReport, SnapshotReport]
    before: DeviceSnapshot
    after: DeviceSnapshot
    findings: tuple[tuple[Finding, ...], tuple[Finding, ...]]
    phases: tuple[PhaseChange, ...]
    by_category: tuple[Change, ...]
    by_module: tuple[ModuleChange, ...]
    by_site: tuple[Change, ...]
    differences: tuple[Difference, ...]
    causes: tuple[Cause, ...]
    is_known: bool
    terms: tuple[Term, ...] = ()

    @property
    def changed_bytes(self) -> int:
        """The change of the peak of allocated bytes."""
        return self.after.peak_allocated_bytes - self.before.peak_allocated_bytes

    @property
    def changed_reserved_bytes(self) -> int:
        """The change of the peak of reserved bytes."""
        return self.after.peak_reserved_bytes - self.before.peak_reserved_bytes


def diff_snapshots(before: SnapshotReport, after: SnapshotReport) -> DiffReport | None:
    """Compares two snapshots; returns None where one of them contains no device memory."""
    if not before.devices or not after.devices:
        return None
    first, second = (
        max(report.devices, key=lambda device: device.peak_allocated_bytes)
        for report in (before, after)
    )
    peaks = (Moment(before, first, first.peak_event), Moment(after, second, second.peak_event))
    by_site = tuple(compare_sites(*peaks))
    by_category = tuple(compare_categories(*peaks))
    phases = find_phase_peaks(first), find_phase_peaks(second)
    differences = tuple(find_differences((before, first), (after, second)))
    findings = find_findings(before), find_findings(after)
    is_held = all(HELD in side for side in phases)
    held_moments = _moments(peaks, phases[0][HELD], phases[1][HELD]) if is_held else peaks
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
        causes=find_causes(Evidence(*peaks, held_moments, findings, by_site, differences)),
        is_known=first.owners.is_known and second.owners.is_known,
        terms=find_terms(Run(before, first), Run(after, second), by_category),
    )


def _moments(
    peaks: tuple[Moment, Moment], before: PhasePeak, after: PhasePeak
) -> tuple[Moment, Moment]:
    """Returns other moments of the same devices."""
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
