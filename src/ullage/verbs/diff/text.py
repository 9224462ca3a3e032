"""The view of a comparison of two snapshots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ullage.answers import block_kinds as b
from ullage.explain.compare.agreement import Term
from ullage.explain.compare.causes import MIN_SHARE, CauseKind
from ullage.explain.compare.changes import Change, signed
from ullage.explain.compare.diff import DiffReport, PhaseChange
from ullage.explain.compare.memory_here import NotKnown
from ullage.explain.owners.sites import UNKNOWN_SITE
from ullage.facts.gpus.measured_memory import MeasuredMemory
from ullage.ground.units import format_bytes
from ullage.verbs.views.module_names import name_module
from ullage.verbs.views.palette import CATEGORY_LOOKS

_MAX_ROWS = 12
_MAX_CAUSES = 5
# Places that changed by less than this fraction of the larger peak are summed up.
_SHOWN_SHARE = 0.001
_SIDE, _CUT = b.Column(overflow=b.Overflow.FOLD), b.Column(overflow=b.Overflow.CUT)


def diff_line(report: DiffReport) -> str:
    """The result, in one line."""
    allocated = [totals.peak_allocated_bytes for totals in report.totals]
    outside = _outside(report)
    more = f", {signed(outside)} outside PyTorch" if outside else ""
    if not report.changed_bytes and not report.changed_reserved_bytes:
        return f"the peaks are the same: {format_bytes(allocated[0], 2)} allocated{more}"
    sizes = " to ".join(format_bytes(size, 2) for size in allocated)
    return (
        f"{signed(report.changed_bytes)} allocated at the peak ({sizes}), "
        f"{signed(report.changed_reserved_bytes)} reserved{more}"
    )


def _outside(report: DiffReport) -> int:
    """The change outside PyTorch; that of a prediction is among the terms."""
    return 0 if report.terms else report.changed_outside_bytes or 0


def phase_line(report: DiffReport) -> str:
    """The changes of phases: "backward +1.31 GiB, forward unchanged"; empty if none are known."""
    changed = [phase for phase in report.phases if _is_changed(phase)]
    same = [phase.name for phase in report.phases if not _is_changed(phase)]
    parts = [f"{phase.name} {signed(phase.changed_bytes)}" for phase in changed]
    parts += [f"{', '.join(same)} unchanged"] if same and changed else []
    return "; ".join(parts)


def _is_changed(phase: PhaseChange) -> bool:
    return abs(phase.changed_bytes) >= MIN_SHARE * max(phase.before_bytes, phase.after_bytes, 1)


def diff_blocks(report: DiffReport) -> Iterator[b.Block]:
    """The causes of the change, and the change by phase, category, module and place."""
    changes = report.changed_bytes, report.changed_reserved_bytes, _outside(report)
    more = any(change > 0 for change in changes)
    yield b.Headline.of(diff_line(report), b.Tone.BAD if more else b.Tone.GOOD)
    if report.before is None:
        yield b.Note("the peaks alone: a document's snapshot is not where it was written", indent=2)
    if report.until:
        yield b.Note(f"compared up to {report.until}", indent=2, hang=4, margin=2)
    line = phase_line(report)
    if line:
        yield b.Note(f"peaks: {line}", indent=2, hang=4, margin=2)
    if report.terms:
        yield b.Title("Measured and predicted")
        yield _term_table(report.terms)
    if report.causes:
        yield b.Title("Why")
    for cause in report.causes[:_MAX_CAUSES]:
        size = f"{signed(cause.changed_bytes)}: " if cause.changed_bytes else ""
        yield b.Note(size + cause.text, indent=2, hang=4, margin=2)
    yield from _rest(report)
    if report.differences:
        yield b.Title("What else differs")
        rows: b.Rows = [
            [each.name, *("-" if side is None else str(side) for side in (each.before, each.after))]
            for each in report.differences
        ]
        yield b.Table((b.LEFT, _SIDE, _SIDE), rows, ("", "before", "after"))
    if report.phases:
        yield b.Title("Peak of each phase")
        yield _phase_table(report.phases)
    yield from _peak_parts(report)


def _least(report: DiffReport) -> float:
    return _SHOWN_SHARE * max(1, *(totals.peak_allocated_bytes for totals in report.totals))


def _rest(report: DiffReport) -> Iterator[b.Block]:
    """The rest of the change beside the causes; or that they overlap, and do not add up to it."""
    shown = report.causes[:_MAX_CAUSES]
    rest = report.changed_bytes + _outside(report) - sum(cause.changed_bytes for cause in shown)
    if not shown or abs(rest) < _least(report):
        return
    if all(cause.kind in (CauseKind.PLACE, CauseKind.OUTSIDE) for cause in shown):
        text = f"{signed(rest)}: all other places"
    else:
        text = "(the lines overlap and do not add up: a place is also part of a cause)"
    yield b.Note(text, b.Tone.FAINT, indent=2, hang=4, margin=2)


def stored_lines(memory: MeasuredMemory | NotKnown, path: Path | None) -> list[str]:
    """The figures kept of the GPU and their place, or why none were kept."""
    if isinstance(memory, NotKnown):
        return [f"Not kept for `ullage gpus`: {memory.reason}."]
    sizes = [f"context {format_bytes(memory.context_bytes)}"]
    sizes += [f"{name} {format_bytes(size)}" for name, size in memory.workspace_bytes.items()]
    return [
        f"Kept for `ullage gpus {memory.gpu}`, as measured: {', '.join(sizes)}",
        f"Wrote {path}",
    ]


def _term_table(terms: Sequence[Term]) -> b.Table:
    rows: b.Rows = []
    for term in terms:
        ends = dict.fromkeys(format_bytes(size) for size in (term.low_bytes, term.high_bytes))
        measured = "" if term.measured_bytes is None else format_bytes(term.measured_bytes)
        verdict = {None: "not measured", True: "inside", False: "outside"}[term.is_inside]
        rows.append([term.name, measured, f"predicted {' to '.join(ends)}", verdict])
    return b.Table((b.LEFT, b.RIGHT, b.LEFT, b.LEFT), rows)


def _peak_parts(report: DiffReport) -> Iterator[b.Block]:
    if report.by_category:
        how = "" if report.is_known else " (guessed from stacks)"
        yield b.Title(f"At the peak, by category{how}")
        yield _category_table(report.by_category)
    least = _least(report)
    modules = [module for module in report.by_module if abs(module.changed_bytes) >= least]
    if modules:
        yield b.Title("At the peak, by module")
        rows: b.Rows = [
            change_row(name_module(module.path), module.before_bytes, module.after_bytes)
            for module in modules[:_MAX_ROWS]
        ]
        heads = ("module", "before", "after", "change")
        yield b.Table((_CUT, b.RIGHT, b.RIGHT, b.RIGHT), rows, heads)
    if not report.by_site:
        return
    yield b.Title("At the peak, by place")
    places = [place for place in report.by_site if abs(place.changed_bytes) >= least][:_MAX_ROWS]
    yield _site_table(places)
    others = set(report.by_site) - set(places)
    if others:
        rest = signed(sum(other.changed_bytes for other in others))
        yield b.Note(
            f"and {len(others)} more, {rest}, all of them in --json", b.Tone.FAINT, indent=2
        )


def _phase_table(phases: Sequence[PhaseChange]) -> b.Table:
    rows: b.Rows = []
    for phase in phases:
        largest = phase.by_site[0] if phase.by_site and _is_changed(phase) else None
        # The place with the largest change, shortened to the width of a column.
        what = "" if largest is None else largest.name.rpartition("/")[2]
        if largest is not None and largest.name == UNKNOWN_SITE:
            what = f"{_owner(largest)}, no Python stack"
        row = change_row(phase.name, phase.before_bytes, phase.after_bytes, what)
        rows.append(row if _is_changed(phase) else row._replace(tone=b.Tone.FAINT))
    return b.Table(
        (b.LEFT, b.RIGHT, b.RIGHT, b.RIGHT, _CUT),
        rows,
        ("phase", "before", "after", "change", "mostly"),
    )


def _owner(change: Change) -> str:
    return CATEGORY_LOOKS[change.category].label if change.category else change.name


def _category_table(changes: Sequence[Change]) -> b.Table:
    rows: b.Rows = []
    has_blocks = any(change.before.num_blocks or change.after.num_blocks for change in changes)
    title = "blocks" if has_blocks else ""
    for change in changes:
        sides = (change.before, change.after)
        counts = (str(side.num_blocks) if has_blocks else "" for side in sides)
        sizes = change.before.size_bytes, change.after.size_bytes
        rows.append(change_row(_owner(change), sizes[0], sizes[1], *counts))
    return b.Table(
        (b.LEFT, b.RIGHT, b.RIGHT, b.RIGHT, b.RIGHT, b.RIGHT),
        rows,
        ("category", "before", "after", "change", title, ""),
    )


def _site_table(changes: Sequence[Change]) -> b.Table:
    rows: b.Rows = []
    for change in changes:
        name = "no Python stack" if change.name == UNKNOWN_SITE else change.name
        before, after = (format_bytes(side.size_bytes) for side in (change.before, change.after))
        size = f"{_owner(change)}, {before} to {after}; {change.looks_like}"
        changed = b.Word(signed(change.changed_bytes), _tone(change.changed_bytes))
        rows.append([changed, f"{name}\n{size}"])
    return b.Table((b.RIGHT, b.Column(hang=2)), rows)


def change_row(name: str, before_bytes: int, after_bytes: int, *more: str) -> b.Row:
    """A row of two sizes and their difference."""
    changed = after_bytes - before_bytes
    sizes = (format_bytes(before_bytes, 2), format_bytes(after_bytes, 2), signed(changed))
    return b.Row([name, *sizes, *more], _tone(changed))


def _tone(changed_bytes: int) -> b.Tone:
    return b.Tone.MORE if changed_bytes > 0 else b.Tone.LESS if changed_bytes < 0 else b.Tone.FAINT
