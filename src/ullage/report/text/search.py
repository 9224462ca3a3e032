"""The text report of a search for a server.

render_search((searched, worths, capacity, tiers), width=80)      a text
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from ullage.report.terminal import make_grid, print_parts, render
from ullage.report.text.forecast import tiers_grid
from ullage.serve.search.bounds import Judged
from ullage.serve.search.search import Searched, Server
from ullage.serve.search.worth import Worth
from ullage.serve.tiers import Tiers
from ullage.units import format_bytes

View = tuple[Searched, tuple[Worth, ...], "float | None", "Tiers | None"]


def render_search(view: View, width: int = 80) -> str:
    """The report as a text without colour, `width` columns wide."""
    return render(lambda console: print_search(view, console), width)


def print_search(view: View, console: Console) -> None:
    """Prints the report."""
    print_parts(_parts(*view), console)


def search_line(view: View) -> str:
    """The result, in one line."""
    searched = view[0]
    best = searched.best
    goal = f"{searched.order.slo.text()} for {100 * searched.order.target_frac:g} %"
    if best is None:
        number = len(searched.servers)
        return f"no server holds {goal} of the requests: {number} were run"
    run = best.run
    return (
        f"{_name(best)} holds {goal} of the requests: {100 * run.goodput_frac:.1f} % in a run "
        f"of the command, {run.num_preemptions:,} preemptions"
    )


def _name(server: Server | Judged) -> str:
    candidate = server.candidate
    return f"{candidate.num_gpus} x {candidate.gpu.slug}"


def _parts(
    searched: Searched, worths: tuple[Worth, ...], capacity: float | None, tiers: Tiers | None
) -> Iterator[RenderableType]:
    best = searched.best
    yield Text(
        search_line((searched, worths, capacity, tiers)), "bold green" if best else "bold red"
    )
    if best is not None:
        yield Text(f"\n  {shlex.join(best.words)}\n")
        if capacity:
            yield Text(f"  holds {capacity:.1f} times the rate of this traffic, by the forecast")
    yield Text("\nRun, in virtual time")
    yield _runs(searched)
    yield Text("\nBy closed forms, the smallest first")
    yield _judged(searched.judged)
    if worths:
        yield Text("\nWhat each flag is worth, by closed forms")
        yield _worths(worths)
    if tiers is not None and best is not None:
        yield Text("\nPrompts that share a prefix")
        yield tiers_grid(tiers)
        yield Text(_tier_line(tiers, best))


def _runs(searched: Searched) -> RenderableType:
    grid = make_grid("left", "right", "right", "right", "left")
    grid.add_row("", "tokens", "good", "forecast", "")
    for server in searched.servers:
        run = server.run
        note = "holds" if server.is_held else run.problem or "does not hold"
        if run.num_refused or run.num_stuck:
            note += f"; {run.num_refused + run.num_stuck:,} without an answer"
        grid.add_row(
            f"  {_name(server)}", f"{run.tokens:,}", f"{100 * run.goodput_frac:.1f} %",
            f"{100 * server.forecast_frac:.1f} %", note,
        )  # fmt: skip
    return grid


def _judged(judged: tuple[Judged, ...]) -> RenderableType:
    grid = make_grid("left", "right", "right", "left")
    grid.add_row("", "tokens", "good", "")
    for each in judged:
        flags = " ".join(each.candidate.flag(name) for name in each.candidate.chosen)
        good = "-" if each.reason else f"{100 * each.goodput_frac:.1f} %"
        grid.add_row(f"  {_name(each)}", f"{each.tokens:,}", good, each.reason or flags)
    return grid


def _worths(worths: tuple[Worth, ...]) -> RenderableType:
    grid = make_grid("left", "left", "right", "right", "left")
    grid.add_row("", "", "tokens", "good", "")
    for worth in worths:
        state = "left out" if worth.is_taken else "added"
        change = f"{100 * (worth.tokens_frac - 1):+.0f} %"
        good = f"{100 * worth.goodput_frac:.1f} %"
        grid.add_row(f"  {worth.flag}", state, change, good, worth.what)
    return grid


def _tier_line(tiers: Tiers, server: Server) -> str:
    """What the cache on the GPUs finds, and what a tier in the host's memory would add."""
    cache = server.run.tokens * tiers.token_bytes
    here = tiers.found_frac(cache)
    rest = max(0, tiers.bytes_for(1.0) - cache)
    line = (
        f"  the cache ({format_bytes(cache)}) finds at most {100 * here:.0f} % of that, less what "
        "running requests take"
    )
    if rest:
        line += f"; {format_bytes(rest)} of host memory or NVMe beside it could find the rest"
    return line
