"""The view of `ullage smallest`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ullage.answers import block_kinds as b
from ullage.ground.units import format_bytes
from ullage.operate.serve.search.bounds import Judged
from ullage.operate.serve.search.search import Searched, Server
from ullage.operate.serve.search.worth import Worth
from ullage.operate.serve.tiers import Tiers
from ullage.verbs.serve.forecast_text import tiers_grid

View = tuple[Searched, tuple[Worth, ...], "float | None", "Tiers | None"]


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


def search_blocks(view: View) -> Iterator[b.Block]:
    """The servers that ran, those that did not, and the worth of each flag."""
    searched, worths, capacity, tiers = view
    best = searched.best
    yield b.Headline.of(search_line(view), b.Tone.GOOD if best else b.Tone.BAD)
    if best is not None:
        yield b.Note(shlex.join(best.words), indent=2, is_apart=True)
        yield b.SPACE
        if capacity:
            yield b.Note(
                f"holds {capacity:.1f} times the rate of this traffic, by the forecast", indent=2
            )
    yield b.Title("Run, in virtual time")
    yield _runs(searched)
    yield b.Title("By closed forms, the smallest first")
    yield _judged(searched.judged)
    if worths:
        yield b.Title("What each flag is worth, by closed forms")
        yield _worths(worths)
    if tiers is not None and best is not None:
        yield b.Title("Prompts that share a prefix")
        yield tiers_grid(tiers)
        yield b.Note(_tier_line(tiers, best), indent=2)


def _runs(searched: Searched) -> b.Table:
    rows: b.Rows = []
    for server in searched.servers:
        run = server.run
        note = "holds" if server.is_held else run.problem or "does not hold"
        if run.num_refused or run.num_stuck:
            note += f"; {run.num_refused + run.num_stuck:,} without an answer"
        rows.append(
            [
                _name(server),
                f"{run.tokens:,}",
                f"{100 * run.goodput_frac:.1f} %",
                f"{100 * server.forecast_frac:.1f} %",
                note,
            ]
        )
    return b.Table(
        (b.LEFT, b.RIGHT, b.RIGHT, b.RIGHT, b.LEFT), rows, ("", "tokens", "good", "forecast", "")
    )


def _judged(judged: tuple[Judged, ...]) -> b.Table:
    rows: b.Rows = []
    for each in judged:
        flags = " ".join(each.candidate.flag(name) for name in each.candidate.chosen)
        good = "-" if each.reason else f"{100 * each.goodput_frac:.1f} %"
        rows.append([_name(each), f"{each.tokens:,}", good, each.reason or flags])
    return b.Table((b.LEFT, b.RIGHT, b.RIGHT, b.LEFT), rows, ("", "tokens", "good", ""))


def _worths(worths: tuple[Worth, ...]) -> b.Table:
    rows: b.Rows = []
    for worth in worths:
        state = "left out" if worth.is_taken else "added"
        change = f"{100 * (worth.tokens_frac - 1):+.0f} %"
        good = f"{100 * worth.goodput_frac:.1f} %"
        rows.append([worth.flag, state, change, good, worth.what])
    return b.Table((b.LEFT, b.LEFT, b.RIGHT, b.RIGHT, b.LEFT), rows, ("", "", "tokens", "good", ""))


def _tier_line(tiers: Tiers, server: Server) -> str:
    """The hits of the cache on the GPUs, and those that a tier in the host's memory would add."""
    cache = server.run.tokens * tiers.token_bytes
    here = tiers.found_frac(cache)
    rest = max(0, tiers.bytes_for(1.0) - cache)
    line = (
        f"the cache ({format_bytes(cache)}) finds at most {100 * here:.0f} % of that, less what "
        "running requests take"
    )
    if rest:
        line += f"; {format_bytes(rest)} of host memory or NVMe beside it could find the rest"
    return line
