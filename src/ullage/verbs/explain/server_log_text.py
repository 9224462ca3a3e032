"""The views of a server's log, and of two compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ullage.answers import block_kinds as b
from ullage.explain.compare.changes import signed
from ullage.explain.servers.differences import ROUNDING, StartChange
from ullage.explain.servers.levers import ESTIMATED, Lever
from ullage.explain.servers.start import Load, ServerStart
from ullage.ground.units import format_bytes
from ullage.verbs.views.palette import CONTEXT_LOOK, PART_LOOKS

Explained = tuple[ServerStart, tuple[Lever, ...]]
_BAR: Final = 20
_MOST_LEVERS: Final = 8


def server_line(explained: Explained) -> str:
    """The result, in one line."""
    start, _ = explained
    if start.failure is not None:
        is_early = start.parts and not start.is_ready
        return f"{'did not start' if is_early else 'failed'}: {start.failure.what}"
    if start.tokens is None:
        return f"{start.engine}: the log does not say how many tokens the cache has"
    line = f"cache of {start.tokens:,} tokens"
    if start.cache_bytes:
        line += f" in {format_bytes(start.cache_bytes, 2)}"
    if start.concurrency is not None and start.max_model_len is not None:
        line += f", {start.concurrency:.2f} requests of {start.max_model_len:,}"
    return line


def server_blocks(explained: Explained) -> Iterator[b.Block]:
    """The memory of the start, the load, and what would give the cache more tokens."""
    start, levers = explained
    failure = start.failure
    yield b.Headline.of(server_line(explained), b.Tone.BAD if failure else b.Tone.GOOD)
    names = [start.engine, start.version or "", start.model or ""]
    yield b.Note(" ".join(filter(None, names)), b.Tone.FAINT, b.Overflow.CUT, indent=2)
    if start.num_starts > 1:
        before = start.failure_before
        how = f"failed: {before.what}" if before else "was ready, and the log has no end of it"
        yield b.Note(f"The last of {start.num_starts} starts in the log; the one before it {how}")
    if start.parts:
        yield b.SPACE
        yield _memory(start)
    if start.load is not None:
        yield b.SPACE
        yield _load(start.load)
    if failure is not None and failure.remedies:
        yield b.Title("What to change")
        yield from (b.Note(remedy, indent=2) for remedy in failure.remedies)
    if levers and failure is None:
        yield b.Title("What would give the cache more tokens")
        yield _levers(start, levers)
        is_estimated = any(lever.basis == ESTIMATED for lever in levers)
        sizes = "; the step's sizes from the model's configuration" * is_estimated
        basis = f"from the log's figures{sizes or ' alone'}"
        yield b.Note(basis, b.Tone.FAINT, indent=2)


def _memory(start: ServerStart) -> b.Table:
    rows: b.Rows = []
    scale = start.total_bytes or sum(max(0, part.bytes) for part in start.parts)
    for part in start.parts:
        if part.name == "not printed" and abs(part.bytes) <= 3 * start.grain_bytes:
            continue  # what rounding leaves
        bar = b.Bar(part.bytes, scale, PART_LOOKS.get(part.name, CONTEXT_LOOK).color, _BAR)
        rows.append([part.name, format_bytes(part.bytes, 2), bar, part.what])
    if start.total_bytes is not None:
        what = "of the device" if start.engine == "vllm" else "free before the start"
        rows.append(["total", format_bytes(start.total_bytes, 2), "", what])
    return b.Table((b.LEFT, b.RIGHT, b.LEFT, b.LEFT), rows)


def _load(load: Load) -> b.Table:
    rows: b.Rows = []
    for name, value in (
        ("running", load.running), ("waiting", load.waiting),
        ("preemptions since the start", load.num_preemptions),
    ):  # fmt: skip
        if value is not None:
            rows.append([name, f"{value:,}"])
    for name, share in (
        ("cache in use", load.usage_frac), ("prefix hits", load.prefix_hit_frac),
    ):  # fmt: skip
        if share is not None:
            rows.append([name, f"{100 * share:.0f} %"])
    return b.Table((b.LEFT, b.RIGHT), rows)


def _levers(start: ServerStart, levers: tuple[Lever, ...]) -> b.Table:
    rows: b.Rows = []
    tokens = start.tokens or 1
    for lever in levers[:_MOST_LEVERS]:
        share = f"+{100 * lever.gain_tokens / tokens:.0f} %"
        rows.append([lever.change, f"+{lever.gain_tokens:,}", share, lever.what])
    return b.Table((b.LEFT, b.RIGHT, b.RIGHT, b.LEFT), rows)


def server_diff_line(change: StartChange) -> str:
    """The result, in one line."""
    before, after = change.before.tokens or 0, change.after.tokens or 0
    if before == after:
        return f"the caches are the same: {before:,} tokens"
    share = 100 * (after / before - 1)
    return f"{after - before:+,} tokens of cache ({share:+.1f} %): {before:,} to {after:,}"


def server_diff_blocks(change: StartChange) -> Iterator[b.Block]:
    """The causes of the change, each with its tokens."""
    yield b.Headline.of(server_diff_line(change), b.Tone.STRONG)
    if change.causes:
        rows: b.Rows = []
        for cause in change.causes:
            size = "" if cause.bytes is None else signed(cause.bytes)
            why = cause.why or "no option that was printed explains it"
            rows.append([cause.part, f"{cause.tokens:+,.0f}", size, why])
        yield b.SPACE
        yield b.Table((b.LEFT, b.RIGHT, b.RIGHT, b.LEFT), rows, ("", "tokens", "bytes", ""))
        yield b.Note(f"{100 * change.named_frac:.1f} % has a reason with a name", is_apart=True)
    reasons = [cause.why for cause in change.causes if cause.why != ROUNDING]
    others = [row for row in change.options if not any(f"{row[0]} " in why for why in reasons)]
    if others:
        yield b.Note(
            "Also different: " + ", ".join(f"{name} {old} -> {new}" for name, old, new in others)
        )
