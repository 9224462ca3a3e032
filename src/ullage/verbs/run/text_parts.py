"""Parts of the whole report of a run: peaks, steps, host memory, and the basis."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from ullage.answers import block_kinds as b
from ullage.explain.device import DeviceReport
from ullage.explain.host import HostMemory
from ullage.explain.moments.steps import EvaluationPeak, StepPeak
from ullage.explain.run import RunReport
from ullage.ground.units import format_bytes
from ullage.log.assumptions import Assumption

_MAX_ROWS = 8
_PHASES = ("forward", "backward", "optimizer")
_PLACE_WIDTH = 24


def peak_table(device: DeviceReport) -> b.Table:
    """The peaks of requested, allocated and reserved bytes, and of the whole device."""
    totals = device.totals
    sizes = (totals.peak_requested_bytes, totals.peak_allocated_bytes, totals.peak_reserved_bytes)
    cells = [format_bytes(size, 2) for size in (*sizes, device.peak_used_bytes)]
    return b.Table(
        (b.LEFT, b.RIGHT, b.RIGHT, b.RIGHT),
        [cells],
        ("requested", "allocated", "reserved", "whole device"),
    )


def step_table(steps: Sequence[StepPeak], evaluations: Sequence[EvaluationPeak]) -> b.Table:
    """The peaks of steps and phases. Consecutive equal steps share a line, and a long table omits
    the lines in the middle. All evaluations share a line.
    """
    groups = [list(group) for _, group in itertools.groupby(steps, key=_shown_of_step)]
    shown = (
        groups
        if len(groups) <= _MAX_ROWS
        else [*groups[: _MAX_ROWS // 2], *groups[-_MAX_ROWS // 2 :]]
    )
    rows: b.Rows = []
    for number, group in enumerate(shown):
        if len(shown) < len(groups) and number == _MAX_ROWS // 2:
            rows.append([f"({len(groups) - len(shown)} more)"])
        first, last = group[0], group[-1]
        name = f"{first.index}" if first is last else f"{first.index}-{last.index}"
        phases = (first.phases.get(phase) for phase in _PHASES)
        rows.append(
            [
                name if first.is_complete else f"{name} (unfinished)",
                format_bytes(first.peak.allocated_bytes, 2),
                *(
                    "" if phase is None else format_bytes(phase.allocated_bytes, 2)
                    for phase in phases
                ),
                format_bytes(first.peak.reserved_bytes, 2),
            ]
        )
    if evaluations:
        name = "evaluation" if len(evaluations) == 1 else f"evaluation x {len(evaluations)}"
        peaks = [evaluation.peak for evaluation in evaluations]
        allocated = format_bytes(max(peak.allocated_bytes for peak in peaks), 2)
        reserved = format_bytes(max(peak.reserved_bytes for peak in peaks), 2)
        rows.append([name, allocated, allocated, "", "", reserved])
    return b.Table((b.LEFT, *[b.RIGHT] * 5), rows, ("step", "peak", *_PHASES, "reserved"))


def _shown_of_step(step: StepPeak) -> tuple[object, ...]:
    phases = {name: peak.allocated_bytes for name, peak in step.phases.items()}
    return step.is_complete, step.peak, sorted(phases.items())


def host_table(host: HostMemory) -> b.Table:
    """The host memory in one line; figures for a machine with the GPU only if they differ."""

    def between(low_bytes: int, high_bytes: int) -> str:
        low, high = format_bytes(low_bytes, 2), format_bytes(high_bytes, 2)
        return high if low == high else f"{low} to {high}"

    columns = [("peak here", format_bytes(host.peak_bytes, 2))]
    if host.needed_high_bytes > host.peak_bytes:
        ends = (host.needed_bytes, host.needed_high_bytes)
        columns.append(("with a GPU" + " at least" * (len({*ends}) == 1), between(*ends)))
    if host.pinned_peak_bytes:
        columns.append(("pinned", between(host.pinned_low_bytes, host.pinned_peak_bytes)))
    if host.pinned_asked_bytes < host.pinned_low_bytes:
        columns.append(("asked for", format_bytes(host.pinned_asked_bytes, 2)))
    names, sizes = zip(*columns, strict=True)
    return b.Table([b.RIGHT] * len(names), [sizes], names)


def basis_parts(report: RunReport) -> Iterator[b.Block]:
    """The basis of an answer, exact or not, and a table of its assumptions."""
    allocator, device = report.allocator_basis, report.device_basis
    yield b.Title(f"Basis: allocator {allocator.kind.value}, whole device {device.kind.value}")
    assumptions = list_assumptions(report)
    if assumptions:
        yield _assumption_table(assumptions)


def list_assumptions(report: RunReport) -> list[Assumption]:
    """The assumptions of the answer, the largest first."""
    assumptions = (*report.allocator_basis.assumptions, *report.device_basis.assumptions)
    return sorted(assumptions, key=lambda assumption: -assumption.size_bytes)


def _assumption_table(assumptions: Sequence[Assumption]) -> b.Table:
    groups = _assumption_groups(assumptions)
    rows: b.Rows = []
    for group in groups[:_MAX_ROWS]:
        where = group[0].where if len(group) == 1 else f"{len(group)} places"
        count = sum(assumption.count for assumption in group)
        rows.append([group[0].what, where, f"{count:,}", assumed_bytes(group)])
    if len(groups) > _MAX_ROWS:
        rows.append([f"and {len(groups) - _MAX_ROWS} more, all of them in --json"])
    number = b.Column(is_right=True, overflow=b.Overflow.KEEP)
    columns = (b.LEFT, b.Column(most=_PLACE_WIDTH), number, number)
    return b.Table(columns, rows, ("assumed", "where", "times", "bytes"), is_set_in=True)


def _assumption_groups(assumptions: Sequence[Assumption]) -> list[list[Assumption]]:
    """Groups the assumptions by row; in a long list, equal ones at several places share a row."""
    if len(assumptions) <= _MAX_ROWS:
        return [[assumption] for assumption in assumptions]
    groups: dict[str, list[Assumption]] = {}
    for assumption in assumptions:
        groups.setdefault(assumption.what, []).append(assumption)
    return list(groups.values())


def assumed_bytes(group: Sequence[Assumption]) -> str:
    """The bounds of an assumed size; for values, the bytes that were read."""
    first = group[0]
    if first.low_bytes is not None and first.high_bytes is not None:
        low, high = format_bytes(first.low_bytes), format_bytes(first.high_bytes)
        return f"{low.removesuffix(high[high.index(' ') :])} to {high}"
    size_bytes = sum(assumption.size_bytes for assumption in group)
    return format_bytes(size_bytes) if size_bytes else ""
