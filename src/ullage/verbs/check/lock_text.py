"""The view of `ullage check --write`."""

from __future__ import annotations

from collections.abc import Iterator

from ullage.answers import block_kinds as b
from ullage.explain.compare.changes import signed
from ullage.ground.units import format_bytes
from ullage.verbs.check.gate.compare import Comparison
from ullage.verbs.check.gate.locking import LockReport


def locked_line(report: LockReport) -> str:
    """The result, in one line."""
    if report.refused:
        many = f"{len(report.refused)} of {len(report.judged)}"
        return f"not locked: {many} scenarios did not go through"
    num_written = len(report.written)
    if not num_written and not report.removed:
        return "the lock is as it was"
    changed = [f"{num_written} written"] if num_written else []
    changed += [f"{len(report.removed)} removed"] if report.removed else []
    return f"locked: {', '.join(changed)}"


def locked_blocks(report: LockReport) -> Iterator[b.Block]:
    """The cases that were locked, and those that were not."""
    yield b.Headline.of(locked_line(report), b.Tone.BAD if report.refused else b.Tone.GOOD)
    rows: b.Rows = []
    for case in report.judged:
        for comparison in case.comparisons if case.state.is_lockable else ():
            peaks = comparison.entry.peaks
            sizes = (peaks.allocated_bytes, peaks.reserved_bytes)
            texts = (format_bytes(size, 2) for size in sizes)
            rows.append([comparison.name, *texts, _change(comparison), _what(report, comparison)])
    rows += [[name, "", "", "", "removed"] for name in report.removed]
    yield b.Table(
        (b.Column(overflow=b.Overflow.FOLD), b.RIGHT, b.RIGHT, b.RIGHT, b.LEFT),
        rows,
        ("scenario", "allocated", "reserved", "change", ""),
    )
    for case in report.refused:
        yield b.Title(f"{case.name}: {case.reason}")
        for line in case.output.splitlines():
            yield b.Note(line, b.Tone.FAINT, b.Overflow.FOLD, indent=2)
    if report.left:
        text = "entries that differ from the lock stay as they were; to update them:"
        yield b.Note(text, b.Tone.PLAIN, b.Overflow.FOLD, indent=2, is_apart=True)
        command = f"ullage check --write {' '.join(report.left)}"
        yield b.Note(command, b.Tone.PLAIN, b.Overflow.FOLD, indent=2)


def _change(comparison: Comparison) -> str:
    if comparison.locked is None:
        return ""
    changed = comparison.entry.peaks.allocated_bytes - comparison.locked.peaks.allocated_bytes
    return signed(changed) if changed else "none"


def _what(report: LockReport, comparison: Comparison) -> str:
    if comparison.name in report.written:
        return "new" if comparison.locked is None else "updated"
    return "left as it was" if comparison.name in report.left else "unchanged"
