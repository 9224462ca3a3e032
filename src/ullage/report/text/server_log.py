"""The text report of a server's log, and of two compared.

render_server((start, levers), width=80)        a text
print_server_diff(change, Console())            prints it
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Console, RenderableType
from rich.text import Text

from ullage.explain.servers.differences import ROUNDING, StartChange
from ullage.explain.servers.levers import ESTIMATED, Lever
from ullage.explain.servers.start import Load, Part, ServerStart
from ullage.report.palette import CATEGORY_LOOKS, CONTEXT_LOOK, FREE_LOOK, Look
from ullage.report.terminal import bar_mark, draw_bar, make_grid, print_parts, render
from ullage.trace.category import Category
from ullage.units import format_bytes

Explained = tuple[ServerStart, tuple[Lever, ...]]
_BAR: Final = 20
_MOST_LEVERS: Final = 8
_LOOKS: Final = {
    "weights": CATEGORY_LOOKS[Category.PARAMETER],
    "activations": CATEGORY_LOOKS[Category.ACTIVATION],
    "CUDA graphs": CATEGORY_LOOKS[Category.WORKSPACE],
    "states": CATEGORY_LOOKS[Category.BUFFER],
    "KV cache": CATEGORY_LOOKS[Category.KV_CACHE],
}
_FREE: Final = ("beyond the share", "left")


def render_server(explained: Explained, width: int = 80) -> str:
    """The report as a text without colour, `width` columns wide."""
    return render(lambda console: print_server(explained, console), width)


def print_server(explained: Explained, console: Console) -> None:
    """Prints the report."""
    print_parts(_parts(*explained, bar_mark(console)), console)


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


def _parts(start: ServerStart, levers: tuple[Lever, ...], mark: str) -> Iterator[RenderableType]:
    failure = start.failure
    yield Text(server_line((start, levers)), "bold red" if failure else "bold green")
    names = [start.engine, start.version or "", start.model or ""]
    yield Text(f"  {' '.join(filter(None, names))}", style="dim", overflow="ellipsis", no_wrap=True)
    if start.num_starts > 1:
        before = start.failure_before
        how = f"failed: {before.what}" if before else "was ready, and the log has no end of it"
        yield Text(f"The last of {start.num_starts} starts in the log; the one before it {how}")
    if start.parts:
        yield Text()
        yield _memory(start, mark)
    if start.load is not None:
        yield Text()
        yield _load(start.load)
    if failure is not None and failure.remedies:
        yield Text("\nWhat to change")
        yield from (Text(f"  {remedy}") for remedy in failure.remedies)
    if levers and failure is None:
        yield Text("\nWhat would give the cache more tokens")
        yield _levers(start, levers)
        yield Text(_basis(levers), style="dim")


def _memory(start: ServerStart, mark: str) -> RenderableType:
    grid = make_grid("left", "right", "left", "left")
    scale = start.total_bytes or sum(max(0, part.bytes) for part in start.parts)
    for part in start.parts:
        if part.name == "not printed" and abs(part.bytes) <= 3 * start.grain_bytes:
            continue  # what rounding leaves
        bar = draw_bar(_look(part), part.bytes, scale, mark, _BAR)
        grid.add_row(f"  {part.name}", format_bytes(part.bytes, 2), bar, part.what)
    if start.total_bytes is not None:
        what = "of the device" if start.engine == "vllm" else "free before the start"
        grid.add_row("  total", format_bytes(start.total_bytes, 2), Text(), what)
    return grid


def _look(part: Part) -> Look:
    return _LOOKS.get(part.name, FREE_LOOK if part.name in _FREE else CONTEXT_LOOK)


def _load(load: Load) -> RenderableType:
    grid = make_grid("left", "right")
    for name, value in (
        ("  running", load.running), ("  waiting", load.waiting),
        ("  preemptions since the start", load.num_preemptions),
    ):  # fmt: skip
        if value is not None:
            grid.add_row(name, f"{value:,}")
    for name, share in (
        ("  cache in use", load.usage_frac), ("  prefix hits", load.prefix_hit_frac),
    ):  # fmt: skip
        if share is not None:
            grid.add_row(name, f"{100 * share:.0f} %")
    return grid


def _levers(start: ServerStart, levers: tuple[Lever, ...]) -> RenderableType:
    grid = make_grid("left", "right", "right", "left")
    tokens = start.tokens or 1
    for lever in levers[:_MOST_LEVERS]:
        share = f"+{100 * lever.gain_tokens / tokens:.0f} %"
        grid.add_row(f"  {lever.change}", f"+{lever.gain_tokens:,}", share, lever.what)
    return grid


def _basis(levers: tuple[Lever, ...]) -> str:
    if any(lever.basis == ESTIMATED for lever in levers):
        return "  from the log's figures; the step's sizes from the model's configuration"
    return "  from the log's figures alone"


def render_server_diff(change: StartChange, width: int = 80) -> str:
    """The comparison as a text without colour, `width` columns wide."""
    return render(lambda console: print_server_diff(change, console), width)


def print_server_diff(change: StartChange, console: Console) -> None:
    """Prints the comparison."""
    print_parts(_diff_parts(change), console)


def server_diff_line(change: StartChange) -> str:
    """The result, in one line."""
    before, after = change.before.tokens or 0, change.after.tokens or 0
    if before == after:
        return f"the caches are the same: {before:,} tokens"
    share = 100 * (after / before - 1)
    return f"{after - before:+,} tokens of cache ({share:+.1f} %): {before:,} to {after:,}"


def _diff_parts(change: StartChange) -> Iterator[RenderableType]:
    yield Text(server_diff_line(change), style="bold")
    if change.causes:
        grid = make_grid("left", "right", "right", "left")
        grid.add_row("", "tokens", "bytes", "")
        for cause in change.causes:
            size = "" if cause.bytes is None else _signed(cause.bytes)
            why = cause.why or "no option that was printed explains it"
            grid.add_row(f"  {cause.part}", f"{cause.tokens:+,.0f}", size, why)
        yield Text()
        yield grid
        yield Text(f"\n{100 * change.named_frac:.1f} % has a reason with a name")
    others = [row for row in change.options if not _is_told(change, row[0])]
    if others:
        yield Text("Also different: " + ", ".join(f"{n} {a} -> {b}" for n, a, b in others))


def _is_told(change: StartChange, option: str) -> bool:
    return any(f"{option} " in cause.why for cause in change.causes if cause.why != ROUNDING)


def _signed(size: int) -> str:
    return ("+" if size > 0 else "") + format_bytes(size, 2)
