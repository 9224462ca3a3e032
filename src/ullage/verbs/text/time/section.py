"""How long a step takes, and where its time goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ullage.answers import block_kinds as b
from ullage.clock.price import Expense
from ullage.clock.step_time import Share, StepTime, merge_numbered
from ullage.explain.run import RunReport
from ullage.verbs.text.time.numbers import (
    format_as,
    format_dollars,
    format_interval,
    format_rate,
    format_share,
)
from ullage.verbs.views.module_names import name_timed_module
from ullage.verbs.views.palette import IDLE_LOOK, REST_LOOK, kind_look

_BAR_WIDTH = 20
_MAX_KINDS = 4  # without details
_MAX_ROWS = 12  # of modules and unknown kernels
_SMALL_SHARE = 2e-3  # of the step: what is not shown
_UNKNOWN = "Kernels of which nothing is known"
_PER_BAR = 10**9  # bars are drawn of whole numbers: nanoseconds


def time_blocks(report: RunReport, time: StepTime) -> Iterator[b.Block]:
    """The time of a step, and where it goes; without details in at most twelve lines."""
    yield from _head(time, report.cost, report.num_gpus)
    yield b.Detail((_kind_table(time, len(time.categories)),), (_kind_table(time, _MAX_KINDS),))
    yield _limit(time, _whose(report))
    unknown_s = sum(kernel.exposed.s for kernel in time.unknown)
    count = f"{len(time.unknown)}, {format_share(unknown_s, time.step.s)} of the step"
    brief = [b.Note(f"{_UNKNOWN}: {count}")] if time.unknown else []
    yield b.Detail(_details(time), brief)


def _details(time: StepTime) -> Iterator[b.Block]:
    waits = format_as(time.host_waits, time.step.s)
    yield b.Note(f"The host waits for the device {waits}; {len(time.steps)} whole steps were timed")
    if time.parts:
        yield b.Title("Time by part")
        yield _share_table(time.parts, time, "part")
    if len(time.modules) > 1:
        yield b.Title("Time by module")
        shares = merge_numbered(time.modules)
        modules = [replace(share, name=name_timed_module(share.name)) for share in shares]
        yield _share_table(modules, time, "module")
    if time.unknown:
        yield b.Title(_UNKNOWN)
        yield _share_table(time.unknown, time, "kernel")
    yield from rest_on(time.basis)


def played_time(time: StepTime, expense: Expense | None, num_gpus: int) -> Iterator[b.Block]:
    """The time of a step that was played from a configuration, and all that it rests on."""
    yield from _head(time, expense, num_gpus)
    yield _kind_table(time, len(time.categories))
    yield _limit(time, "Limited")
    yield from rest_on(time.basis)


def time_line(time: StepTime, num_gpus: int = 1) -> str:
    """The time, the speed, and the utilisation: "0.412 s (0.381 to 0.468), 39,700 tokens/s"."""
    parts = [format_interval(time.step)]
    of_each = " a GPU" if num_gpus > 1 else ""
    if time.tokens_per_s is not None:
        parts.append(f"{format_rate(time.tokens_per_s.s)} tokens/s{of_each}")
    elif time.samples_per_s is not None:
        parts.append(f"{format_rate(time.samples_per_s.s)} samples/s{of_each}")
    if time.utilisation is not None:
        parts.append(f"{format_share(time.utilisation.s, 1)} MFU")
    return ", ".join(parts)


def expense_line(expense: Expense) -> str:
    """The cost of a million tokens and of 1,000 steps."""
    gpus = "" if expense.num_gpus == 1 else f" of {expense.num_gpus} GPUs"
    if expense.million_tokens is None:
        return f"1,000 steps{gpus} cost {format_dollars(expense.thousand_steps)}"
    tokens = format_dollars(expense.million_tokens)
    steps = format_dollars(expense.thousand_steps[1:2])
    return f"{tokens} a million tokens; 1,000 steps{gpus} {steps}"


def _head(time: StepTime, expense: Expense | None, num_gpus: int) -> Iterator[b.Block]:
    yield b.Title(f"Time of a step: {time_line(time, num_gpus)}")
    if expense is not None:
        yield b.Note(expense_line(expense), b.Tone.PLAIN, b.Overflow.CUT)


def _kind_table(time: StepTime, num_kinds: int) -> b.Table:
    """The parts of the step; with what is too small to be shown, it comes to the whole."""
    kinds = [kind for kind in time.categories if kind.busy.s > _SMALL_SHARE * time.step.s]
    shown, rest = kinds[:num_kinds], kinds[num_kinds:]
    parts = [(kind_look(kind.name), kind.exposed.s, _hidden_s([kind])) for kind in shown]
    if rest:
        parts.append((REST_LOOK, sum(kind.exposed.s for kind in rest), _hidden_s(rest)))
    parts.append((IDLE_LOOK, time.device_idle.s, 0.0))
    scale = round(max(seconds for _, seconds, _ in parts) * _PER_BAR)
    rows: b.Rows = []
    for look, seconds, hidden_s in parts:
        if seconds + hidden_s > _SMALL_SHARE * time.step.s:
            hidden = f"and {format_as(hidden_s, time.step.s)} hidden"
            size, share = format_as(seconds, time.step.s), format_share(seconds, time.step.s)
            bar = b.Bar(round(seconds * _PER_BAR), scale, look.color, _BAR_WIDTH)
            is_told = hidden_s > 5e-3 * time.step.s
            rows.append([look.label, size, share, bar, hidden if is_told else ""])
    return b.Table((b.LEFT, b.RIGHT, b.RIGHT, b.LEFT, b.LEFT), rows)


def _hidden_s(kinds: Sequence[Share]) -> float:
    """The seconds in which they run beside other work."""
    return sum(max(0.0, kind.busy.s - kind.exposed.s) for kind in kinds)


def _whose(report: RunReport) -> str:
    """The process, of several, whose step is limited."""
    slowest = report.slowest
    if slowest is None or sum(process.time is not None for process in report.processes) < 2:
        return "Limited"
    rank, pid = slowest.record.rank, slowest.record.pid
    which = f"Process {pid}" if rank is None else f"Rank {rank}"
    return f"{which}, the slowest, is limited"


def _limit(time: StepTime, whose: str) -> b.Note:
    shares = [f"{part.name} {format_share(part.exposed.s, time.step.s)}" for part in time.parts[:3]]
    parts = f"; {', '.join(shares)}" if shares else ""
    return b.Note(f"{whose} by {time.critical}{parts}", b.Tone.PLAIN, b.Overflow.CUT)


def rest_on(basis: Sequence[str]) -> Iterator[b.Block]:
    """The basis of times; what differs only after the first semicolon is one line."""
    if basis:
        yield b.Title("The times rest on")
    details: dict[str, dict[str, None]] = {}
    for line in basis:
        head, *more = line.split("; ")
        details.setdefault(head, {}).update(dict.fromkeys(more))
    for head, rest in details.items():
        yield b.Note("; ".join((head, *rest)), indent=2, hang=4)


def _share_table(shares: Sequence[Share], time: StepTime, noun: str) -> b.Table:
    rows: b.Rows = []
    for share in shares[:_MAX_ROWS]:
        alone, busy = (format_as(part, time.step.s) for part in (share.exposed, share.busy.s))
        rows.append([share.name, alone, format_share(share.exposed.s, time.step.s), busy])
    if len(shares) > _MAX_ROWS:
        rows.append([f"and {len(shares) - _MAX_ROWS} more, all of them in --json"])
    number = b.Column(is_right=True, overflow=b.Overflow.KEEP)
    head = (noun, "alone", "of the step", "busy")
    return b.Table((b.LEFT, number, number, number), rows, head, is_set_in=True)
