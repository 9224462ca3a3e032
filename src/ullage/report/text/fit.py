"""The text report of a search for a plan.

render_fit(report, width=80)        a text
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from rich.console import Console, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from ullage.clock.compare import Order, compare
from ullage.plan.findings import Candidate, FitReport
from ullage.plan.objective import Objective
from ullage.plan.outcomes import is_surely_slower
from ullage.plan.sizes.smallest import Smallest
from ullage.report.palette import USED_LOOK
from ullage.report.semantics import name_kind, say_changes
from ullage.report.terminal import bar_mark, draw_bar, make_grid, print_parts, render
from ullage.report.text.time.numbers import format_dollars
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
        return f"fits {where} unchanged: {format_bytes(best.seen.used_bytes, 2)}"
    return (
        f"fits {where} under {name_kind(best.actions)}: {best.name}; "
        f"{format_bytes(best.seen.used_bytes, 2)}, a step takes {_difference(report, best)}"
    )


def _difference(report: FitReport, best: Candidate) -> str:
    """How much longer a step takes than in the unchanged program: "7.3 % more (6.8 to 9.0)"."""
    base = report.as_it_is
    if best.time is None or base.time is None:
        more = 100 * (best.step_s / base.step_s - 1)
        return f"{abs(more):.1f} % {'more' if more >= 0 else 'less'}"
    order, least, likely, most = compare(best.time.step, base.time.step)
    if order is Order.ALIKE:
        return "about as long"
    low, high = (f"{100 * share:.1f}" for share in sorted((abs(least), abs(most))))
    ends = "" if low == high else f" ({low} to {high})"
    return f"{abs(100 * likely):.1f} % {'more' if order is Order.SLOWER else 'less'}{ends}"


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
    yield Text(f"\nBasis: memory as the phantom measured it; {_time_basis(report)}")


def _time_basis(report: FitReport) -> str:
    num, num_untimed = len(report.candidates), len(report.untimed)
    if num == num_untimed:
        return "no time, as no step ended"
    basis = (
        "times of the runs by the clock, likely and with their bounds; the choice of what to run "
        "by what each technique adds to each block"
    )
    if num_untimed:
        basis += f"; {num_untimed} plans that no run timed have the sum of these"
    return "; ".join([basis, *report.corrections])


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
    replayed = report.replayed
    if replayed is None:
        return Text("It was not replayed with real numbers: the search ended first", "yellow")
    text = replayed.text
    return Text(f"{text[:1].upper()}{text[1:]}", style="yellow" if replayed.not_done else "")


def _host_lines(best: Candidate) -> Iterator[Text]:
    if best.seen is not None and best.seen.host_bytes:
        yield Text(f"It needs {format_bytes(best.seen.host_bytes)} of pinned host memory")


def _several_lines(report: FitReport) -> Iterator[Text]:
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
    columns: dict[str, JustifyMethod] = {"": "left", "step": "right"}
    if len(report.untimed) < len(report.candidates):
        columns["bounds"] = "right"
    if unit := _price_unit(report):
        columns[unit] = "right"
    columns |= {"device": "right", "of the budget": "left", "plan, Pareto front": "left"}
    table = make_grid(*columns.values())
    table.add_row(*columns, style="dim")
    front = report.front_of_runs
    rest = [candidate for candidate in report.candidates if candidate not in front]
    names = Counter([report.best.name] if report.best else [])
    for candidate in front:
        _add_row(table, report, candidate, bar, names)
    if rest:
        table.add_row(*([""] * (len(columns) - 1)), "others", style="dim")
    for candidate in rest:
        _add_row(table, report, candidate, bar, names)
    return table


def _add_row(
    table: Table, report: FitReport, candidate: Candidate, bar: str, names: Counter[str]
) -> None:
    is_best = report.best is not None and _tell(candidate) == _tell(report.best)
    ran = report.is_size_known(candidate)
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
        *([_bounds(candidate)] if len(report.untimed) < len(report.candidates) else []),
        *([_price(report, candidate)] if _price_unit(report) else []),
        format_bytes(candidate.used_bytes, 2) if ran else "",
        picture if ran else "",
        text.append(f": {why}", style="" if is_best else "dim") if why else text,
    )


def _bounds(candidate: Candidate) -> str:
    """The lower and the upper bound of a step: "19.9-38.1"."""
    if candidate.time is None:
        return "a sum"
    low, _, high = candidate.time.step
    return f"{1e3 * low:.1f}-{1e3 * high:.1f}"


def _price_unit(report: FitReport) -> str:
    """What the prices of the table are of; empty: there is none."""
    costs = [report.cost(candidate) for candidate in report.candidates]
    known = [cost for cost in costs if cost is not None]
    if not known:
        return ""
    return "1k steps" if any(cost.million_tokens is None for cost in known) else "M tokens"


def _price(report: FitReport, candidate: Candidate) -> str:
    """The likely dollars for steps, or for tokens where their number is known of all plans."""
    cost = report.cost(candidate)
    if cost is None:
        return ""
    is_of_tokens = _price_unit(report) == "M tokens" and cost.million_tokens is not None
    dollars = cost.million_tokens if is_of_tokens else cost.thousand_steps
    return "" if dollars is None else format_dollars(dollars[1:2])


def _tell(candidate: Candidate) -> tuple[object, ...]:
    """The key of a plan; two plans may have the same name, with different modules."""
    return candidate.name, candidate.actions, candidate.configuration


def _merit(report: FitReport, best: Candidate) -> str:
    """Why a plan was chosen: for its time, or for its memory if faster ones fit, too."""
    fitting = [
        candidate
        for candidate in report.candidates
        if candidate.seen is not None and candidate.seen.fits
    ]
    if report.objective is Objective.COST:
        return "the cheapest that fits"
    if all(best.step_s <= other.step_s for other in fitting):
        return "the fastest that fits"
    if not any(is_surely_slower(best, other, report.objective) for other in fitting):
        return "as fast as any that fits"
    if all(best.used_bytes <= other.used_bytes for other in fitting):
        return "the least memory"
    return "the fastest that fits without a release of the allocator's cache"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"
