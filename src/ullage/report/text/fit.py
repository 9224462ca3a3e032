"""The text report of a search for a plan.

render_fit(report, width=80)        a text
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ullage.gpus.gpu import Gpu
from ullage.plan.findings import Candidate, FitReport
from ullage.plan.sizes.smallest import Smallest
from ullage.report.palette import USED_LOOK
from ullage.report.semantics import name_kind, say_changes
from ullage.report.terminal import bar_mark, draw_bar, make_grid, print_parts, render
from ullage.units import format_bytes

_BAR_WIDTH: Final = 12


def render_fit(report: FitReport, width: int = 80) -> str:
    """The report as a text without colour, `width` columns wide."""
    return render(lambda console: print_fit(report, console), width)


def print_fit(report: FitReport, console: Console) -> None:
    """Prints the report."""
    print_parts(_parts(report, bar_mark(console)), console)


def fit_line(report: FitReport) -> str:
    """The result, in one line."""
    of_each = "" if report.num_gpus == 1 else f"each of {report.num_gpus} "
    where = f"{format_bytes(report.budget_bytes, 2)} of {of_each}{report.gpu.slug}"
    if report.failure:
        return f"failed: {report.failure}"
    best = report.best
    if best is None or best.seen is None:
        by_then = f" found before {report.ended}" if report.ended else ""
        return f"no plan{by_then} fits {where}"
    if best.is_as_it_is:
        return f"fits {where} as it is: {format_bytes(best.seen.used_bytes, 2)}"
    slower = 100 * (best.step_s / report.as_it_is.step_s - 1)
    time = f"{abs(slower):.1f} % {'more' if slower >= 0 else 'less'}"
    return (
        f"fits {where} under {name_kind(best.actions)}: {best.name}; "
        f"{format_bytes(best.seen.used_bytes, 2)}, a step takes {time}"
    )


def _parts(report: FitReport, bar: str) -> Iterator[RenderableType]:
    yield Text(fit_line(report), style="bold green" if report.best else "bold red")
    yield Text(f"  {' '.join(report.program)}", style="dim", overflow="ellipsis", no_wrap=True)
    line = f"  torch {report.torch}, {report.num_runs} runs in {report.wall_s:.1f} s"
    yield Text(line, style="dim")
    if report.failure:
        return
    yield Text()
    yield _table(report, bar)
    if report.best is not None and report.bound_s:
        yield from _bound_lines(report, report.best)
    if report.best is not None and report.best.actions:
        yield Text(f"\n{say_changes(report.best.actions)}")
        yield _replayed_line(report)
        yield from _host_lines(report.best)
    if report.num_gpus > 1 and report.best is not None:
        yield from _several_lines(report)
    if report.smallest is not None:
        yield from _smallest_lines(report.smallest)
    if report.best is not None and report.best.configuration and report.plan is not None:
        yield Text(
            "\nThe launcher's file cannot say checkpointing; the plan beside it does: start the "
            "launcher under `ullage exec --plan`"
        )
    if report.ended:
        yield Text(
            f"\nThe search stopped early: {report.ended}; this is the best plan so far",
            style="yellow",
        )
    for warning in report.warnings:
        yield Text(f"warning: {warning}", style="yellow")
    yield from left_out_lines(report.left_out)
    yield Text(
        "\nBasis: memory as the phantom measured it; times from a cost model (roofline and "
        f"host link, rates {_rates(report.gpu)})"
    )


def _bound_lines(report: FitReport, best: Candidate) -> Iterator[Text]:
    yield Text(
        f"\nBy the model, no mixture of these techniques on {len(report.blocks)} blocks that "
        f"needs as little takes less than {_ms(report.bound_s)} a step: the gap is "
        f"{100 * report.gap:.1f} %"
    )
    if best.seen is not None and best.seen.num_retries:
        yield Text(
            f"The allocator had to release its cache {best.seen.num_retries} times; the time for "
            "that is not counted",
            style="yellow",
        )


def left_out_lines(left_out: Mapping[str, str]) -> Iterator[Text]:
    """The techniques that were not used, with reasons; some reasons name their technique."""
    names: dict[str, list[str]] = {}
    for name, why in left_out.items():
        names.setdefault(why, []).append(name)
    for why, same in names.items():
        reason = why if why.startswith(repr(same[0])) else f"{', '.join(same)}: {why}"
        count = f" ({len(same)} techniques)" if len(same) > 1 else ""
        yield Text(f"left out: {reason}{count}", style="dim")


def _replayed_line(report: FitReport) -> Text:
    """The result of the replay of the best plan."""
    replayed = report.replayed
    if replayed is None:
        return Text("It was not replayed with real numbers: the search ended first", "yellow")
    text = replayed.text
    return Text(f"{text[:1].upper()}{text[1:]}", style="yellow" if replayed.not_done else "")


def _host_lines(best: Candidate) -> Iterator[Text]:
    if best.seen is not None and best.seen.host_bytes:
        yield Text(f"It needs {format_bytes(best.seen.host_bytes)} of pinned host memory")


def _several_lines(report: FitReport) -> Iterator[Text]:
    """The lines for a job with several ranks."""
    worst, num = report.worst_rank, report.num_gpus
    if worst is not None:
        kinds = "all ranks are alike"
        if worst.num_distinct > 1:
            kinds = f"the ranks are of {worst.num_distinct} kinds, each of which was simulated"
        used = format_bytes(worst.used_bytes, 2)
        yield Text(f"\nRank {worst.rank} takes the most, {used}; {kinds}")
    if report.plan is not None:
        yield Text(
            f"Each rank trains on its own batch: a step is one on {num} times as many rows. Start "
            f"it as:\n  ullage exec --plan PLAN -- torchrun --nproc-per-node {num} "
            f"{' '.join(report.program)}"
        )


def _smallest_lines(smallest: Smallest) -> Iterator[Text]:
    of_all = f"{format_bytes(smallest.used_bytes, 2)} of {format_bytes(smallest.total_bytes, 2)}"
    yield Text(f"\nThe smallest GPU on which it fits: {smallest.gpu} ({of_all})")
    yield Text(f"  {smallest.name}", style="dim")
    for gpu, why in smallest.too_small.items():
        yield Text(f"  not {gpu}: {why}", style="dim")


def _table(report: FitReport, bar: str) -> Table:
    """The plans, each with a bar relative to the budget and the reason why it was not chosen: first
    the Pareto front of the plans that ran, then the others; the fastest first.
    """
    table = make_grid("left", "right", "right", "left", "left")
    table.add_row("", "step", "device", "of the budget", "plan, Pareto front", style="dim")
    front = _front(report)
    rest = [candidate for candidate in report.candidates if candidate not in front]
    names = Counter([report.best.name] if report.best else [])
    for candidate in front:
        _add_row(table, report, candidate, bar, names)
    if rest:
        table.add_row("", "", "", "", "others", style="dim")
    for candidate in rest:
        _add_row(table, report, candidate, bar, names)
    return table


def _front(report: FitReport) -> list[Candidate]:
    """The Pareto front: no other plan that ran needs less memory and no more time."""
    front: list[Candidate] = []
    for candidate in sorted(
        report.candidates, key=lambda candidate: (candidate.step_s, candidate.used_bytes)
    ):
        if _is_size_known(report, candidate) and (
            not front or candidate.used_bytes < front[-1].used_bytes
        ):
            front.append(candidate)
    return front


def _is_size_known(report: FitReport, candidate: Candidate) -> bool:
    """Whether the peak is known; it is not if a run stopped within the budget."""
    return (
        candidate.seen is None or candidate.seen.fits or candidate.used_bytes > report.budget_bytes
    )


def _add_row(
    table: Table, report: FitReport, candidate: Candidate, bar: str, names: Counter[str]
) -> None:
    """Adds a plan; names: the names of the chosen plan and of the plans in the table."""
    is_best = report.best is not None and _tell(candidate) == _tell(report.best)
    ran = _is_size_known(report, candidate)
    picture = draw_bar(USED_LOOK, candidate.used_bytes, report.budget_bytes, bar, _BAR_WIDTH)
    name = (
        f"{candidate.name} (other blocks)"
        if names[candidate.name] and not is_best
        else candidate.name
    )
    names[candidate.name] += 1
    text = Text(name, style="bold" if is_best else "")
    why = _merit(report, candidate) if is_best else candidate.why
    table.add_row(
        ">" if is_best else "",
        _ms(candidate.step_s) if candidate.step_s else "",
        format_bytes(candidate.used_bytes, 2) if ran else "",
        picture if ran else "",
        text.append(f": {why}", style="" if is_best else "dim") if why else text,
    )


def _tell(candidate: Candidate) -> tuple[object, ...]:
    """The key of a plan; two plans may have the same name, with different modules."""
    return candidate.name, candidate.actions, candidate.configuration


def _rates(gpu: Gpu) -> str:
    """The source of the rates; always shown, because plans depend on them."""
    rates = gpu.measured
    if rates is None:
        return "as the makers state them"
    return f"as measured of a {rates.device}, {rates.date}: {rates.source}"


def _merit(report: FitReport, best: Candidate) -> str:
    """Why a plan was chosen: for its time, or for its memory if faster ones fit, too."""
    fitting = [
        candidate
        for candidate in report.candidates
        if candidate.seen is not None and candidate.seen.fits
    ]
    if all(best.step_s <= other.step_s for other in fitting):
        return "the fastest that fits"
    if all(best.used_bytes <= other.used_bytes for other in fitting):
        return "the least memory"
    return "the fastest that fits without a release of the allocator's cache"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"
