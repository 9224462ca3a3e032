"""The view of `ullage check`, and what a case is called in other formats."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from ullage.answers import block_kinds as b
from ullage.explain.compare.changes import signed
from ullage.explain.device import describe_growth
from ullage.explain.rules.graphs import LEAKS
from ullage.explain.rules.registry import find_rule
from ullage.ground.units import format_bytes
from ullage.verbs.check.gate.compare import HEADROOM, TOKENS, Changed, Comparison, Judgement, Rule
from ullage.verbs.check.gate.figures import OUTSIDE
from ullage.verbs.check.gate.locking import LockReport
from ullage.verbs.check.gate.reasons import name_place
from ullage.verbs.check.gate.verdicts import Judged, State, exit_code_of
from ullage.verbs.diff.text import change_row
from ullage.verbs.views.module_names import name_module
from ullage.verbs.views.palette import CATEGORY_LOOKS
from ullage.verbs.views.views import CheckView

_MAX_ROWS = 6
_NAME = b.Column(overflow=b.Overflow.FOLD)
_TONES = {
    State.PASSED: b.Tone.LESS,
    State.UNLOCKED: b.Tone.WARNING,
    State.EXCEEDED: b.Tone.BAD,
    State.OUT_OF_MEMORY: b.Tone.BAD,
    State.FAILED: b.Tone.DOUBTFUL,
}


def check_line(view: CheckView) -> str:
    """The result, in one line, and what is full first of that which grows."""
    growing = sorted(_growing(view.judged))
    return _counts(view) + (f"; {growing[0][1]}" if growing else "")


def _counts(view: CheckView) -> str:
    counts = Counter(judged.state for judged in view.judged)
    total = len(view.judged)
    many = f"{total} scenario{'s' * (total != 1)}"
    for state in (State.FAILED, State.OUT_OF_MEMORY, State.EXCEEDED):
        if counts[state]:
            return f"{state.value}: {counts[state]} of {many}"
    return f"passed: {many}"


def _growing(judged: Sequence[Judged]) -> Iterator[tuple[float, str, str]]:
    """The growth from step to step: when it is full, how fast, and by which findings."""
    for case in judged:
        for comparison in case.comparisons:
            entry, steps = comparison.entry, case.measured[comparison.name].full_after_steps
            text = describe_growth(entry.growth_bytes, steps)
            rules = [find_rule(code) for code in entry.findings if code in LEAKS]
            if text:
                why = ", ".join(f"{rule.code} {rule.title}" for rule in rules)
                name = comparison.name
                yield math.inf if steps is None else steps, f"{name} {text}", f"{name}: {why}"


def state_text(judged: Judged) -> str:
    """The state of a case, in one or two words."""
    return f"{judged.state.value}, takes less" if judged.is_less else judged.state.value


def case_line(judged: Judged) -> str:
    """Why a case did not pass, in one line; empty if it passed."""
    if judged.reason:
        return judged.reason
    broken = [describe(judgement) for comparison in judged.comparisons
              for judgement in comparison.broken]  # fmt: skip
    return "; ".join(broken)


def describe(judgement: Judgement) -> str:
    """Describes a level that exceeds its limit."""
    if judgement.is_count:
        return _describe_count(judgement)
    taken, limit = (format_bytes(size, 2) for size in (judgement.found_bytes,
                                                       judgement.limit_bytes))  # fmt: skip
    which = "the budget" if judgement.rule is Rule.BUDGET else "the lock"
    if judgement.name == HEADROOM:
        return f"{taken} left, and {which} asks for {limit}"
    over = format_bytes(judgement.found_bytes - judgement.limit_bytes, 2)
    return f"{judgement.name} {taken}, {over} more than {which} allows"


def _describe_count(judgement: Judgement) -> str:
    count, limit = judgement.found_bytes, judgement.limit_bytes
    which = "budget" if judgement.rule is Rule.BUDGET else "lock"
    if judgement.name == TOKENS:
        return f"cache of {count:,} tokens, {limit - count:,} fewer than the {which} asks for"
    return f"{count:,} requests within the objective, and the {which} asks for {limit:,}"


def update_command(judged: Judged) -> str:
    """The command that updates the lock with the current figures of a case."""
    return f"ullage check --write {judged.name}"


def check_blocks(view: CheckView) -> Iterator[b.Block]:
    """The cases, what each limit was exceeded by, and why."""
    code = exit_code_of(view.judged)
    yield b.Headline.of(check_line(view), b.Tone.BAD if code else b.Tone.GOOD)
    yield _table(view.judged)
    yield from (b.Note(why, b.Tone.WARNING, indent=2) for _, _, why in _growing(view.judged))
    yield from _moments(view.judged)
    yield from _served(view.judged)
    for judged in view.judged:
        if judged.state in {State.PASSED, State.UNLOCKED}:
            continue
        yield from _case_parts(view, judged)
    yield from _remarks(view.judged)


def _table(judged: Sequence[Judged]) -> b.Table:
    rows: b.Rows = []
    for case in judged:
        state = b.Word(state_text(case), _TONES[case.state])
        for comparison in case.comparisons:
            peaks, locked = comparison.entry.peaks, comparison.locked
            changed = ""
            if locked is not None:
                by = peaks.allocated_bytes - locked.peaks.allocated_bytes
                changed = signed(by) if by else "none"
            levels = (peaks.reserved_bytes, peaks.used_bytes)
            rows.append(
                [
                    comparison.name,
                    format_bytes(peaks.allocated_bytes, 2),
                    changed,
                    *(format_bytes(level, 2) for level in levels),
                    state,
                ]
            )
        if not case.comparisons:
            rows.append([case.name, "", "", "", "", state])
    return b.Table(
        (_NAME, b.RIGHT, b.RIGHT, b.RIGHT, b.RIGHT, b.LEFT),
        rows,
        ("scenario", "allocated", "change", "reserved", "device", ""),
    )


def _moments(judged: Sequence[Judged]) -> Iterator[b.Note]:
    """The requests that were running at the peak of allocated memory."""
    texts = [
        b.Note(f"{comparison.name}: the most at {comparison.entry.moment}", b.Tone.FAINT, indent=2)
        for case in judged
        if case.scenario.replay is not None
        for comparison in case.comparisons
        if comparison.entry.moment
    ]
    if texts:
        yield b.SPACE
    yield from texts


def _served(judged: Sequence[Judged]) -> Iterator[b.Note]:
    texts = [
        b.Note(
            f"{comparison.name}: cache of {served.cache_tokens:,} tokens, "
            f"{served.good_requests:,} of {served.requests:,} requests within the objective",
            b.Tone.FAINT,
            indent=2,
        )
        for case in judged
        for comparison in case.comparisons
        if (served := comparison.entry.served) is not None
    ]
    if texts:
        yield b.SPACE
    yield from texts


def _case_parts(view: CheckView, judged: Judged) -> Iterator[b.Block]:
    if judged.reason:
        yield b.Note(f"{judged.name}: {judged.reason}", b.Tone.STRONG, hang=2, is_apart=True)
        for line in judged.output.splitlines():
            yield b.Note(line, b.Tone.FAINT, b.Overflow.FOLD, indent=2)
    for comparison in judged.comparisons:
        if comparison.is_kept and judged.state is not State.OUT_OF_MEMORY:
            continue
        if not judged.reason:
            yield b.Note(comparison.name, b.Tone.STRONG, hang=2, is_apart=True)
        for judgement in comparison.broken:
            yield b.Note(describe(judgement), indent=2, hang=4)
        yield from _change_parts(view, judged, comparison)


def _change_parts(view: CheckView, judged: Judged, comparison: Comparison) -> Iterator[b.Block]:
    if comparison.changes.categories:
        moment = comparison.entry.moment
        at = f" ({moment})" if moment else ""
        yield b.Note(f"At the peak{at}, since it was locked", indent=2, is_apart=True)
        rows: b.Rows = []
        for title, changed in list_changes(judged, comparison):
            if changed:
                rows.append(b.Row([f"  by {title}"], b.Tone.FAINT))
            for name, row in changed[:_MAX_ROWS]:
                rows.append(change_row(f"    {name}", row.before_bytes, row.after_bytes))
        yield b.Table((_NAME, b.RIGHT, b.RIGHT, b.RIGHT), rows, ("", "before", "now", "change"))
    reasons = view.reasons(judged, comparison)
    if reasons:
        yield b.Note("Why", indent=2, is_apart=True)
    yield from (b.Note(reason, indent=4, hang=6) for reason in reasons)


def list_changes(
    judged: Judged, comparison: Comparison
) -> Iterator[tuple[str, list[tuple[str, Changed]]]]:
    """The kinds of what changed at the peak, each with its rows and their labels."""
    changes, lines = comparison.changes, judged.measured[comparison.name].lines
    yield "category", [(label_category(row.name), row) for row in changes.categories]
    yield "module", [(label_module(row.name), row) for row in changes.modules]
    yield "place", [(name_place(row, lines), row) for row in changes.places]


def _remarks(judged: Sequence[Judged]) -> Iterator[b.Block]:
    """Advice for cases that are not locked, that use more or less memory, or that were locked with
    another torch: a remark, and a command if there is one.
    """
    remarks = [*_advice(judged)]
    num_kept = sum(case.is_kept for case in judged)
    if num_kept:
        many = f"{num_kept} of {len(judged)}"
        remarks.append((f"{many} not run: nothing that they depend on has changed", ""))
    if remarks:
        yield b.SPACE
    for text, command in remarks:
        yield b.Note(text, indent=2, hang=4)
        if command:
            yield b.Note(command, b.Tone.PLAIN, b.Overflow.KEEP, indent=4)


def _advice(judged: Sequence[Judged]) -> Iterator[tuple[str, str]]:
    new = [case.name for case in judged if case.state is State.UNLOCKED]
    if new:
        yield (
            "judged by the budget alone; to lock what they take:",
            f"ullage check --write {' '.join(new)}",
        )
    for case in judged:
        rules = {broken.rule for two in case.comparisons for broken in two.broken}
        keys = {key for two in case.comparisons for key in two.changes.keys}
        if case.state is State.EXCEEDED and Rule.LOCK in rules:
            yield f"to accept what {case.name} takes:", update_command(case)
        elif case.is_less:
            yield f"{case.name} takes less than it may; to keep it so:", update_command(case)
        elif case.state is State.PASSED and keys:
            changes = ", ".join(f"{name} {before or 'none'}" for name, before, _ in sorted(keys))
            text = (
                f"{case.name} was locked with {changes}, and takes no more now; to lock it again:"
            )
            yield text, update_command(case)
        for name in case.missing:
            yield f"{name} is locked and not there any more; to remove it:", "ullage check --write"


def label_category(name: str) -> str:
    """The label of a category."""
    known = {category.value: look.label for category, look in CATEGORY_LOOKS.items()}
    return known.get(name, name)


def label_module(name: str) -> str:
    """The label of a module."""
    return name_module(None if name == OUTSIDE else name)


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
