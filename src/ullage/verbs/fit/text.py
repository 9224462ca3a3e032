"""The view of a search for a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ullage.answers import block_kinds as b
from ullage.clock.compare import Order, compare
from ullage.ground.units import GIB, format_bytes
from ullage.search.findings import Candidate, FitReport, name_plan
from ullage.search.objective import Objective
from ullage.search.outcomes import is_surely_slower
from ullage.search.sizes.rungs import LadderReport
from ullage.search.sizes.smallest import Smallest
from ullage.verbs.text.time.numbers import format_dollars, format_interval
from ullage.verbs.views.semantics import name_kind, say_changes


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


def fit_blocks(report: FitReport) -> Iterator[b.Block]:
    """The plans that were tried, and the one that was chosen."""
    best = report.best
    yield b.Headline.of(fit_line(report), b.Tone.GOOD if best else b.Tone.BAD)
    yield b.Note(" ".join(report.program), b.Tone.FAINT, b.Overflow.CUT, indent=2)
    line = f"torch {report.torch}, {report.num_runs} runs in {report.wall_s:.1f} s"
    yield b.Note(line, b.Tone.FAINT, indent=2)
    if report.failure:
        return
    yield from _front(report)
    yield b.SPACE
    yield _table(report)
    if best is not None:
        yield b.Title(f"The plan, {_merit(report, best)}")
        names = [name_plan((action,), report.blocks) for action in best.actions]
        yield from (b.Note(name, indent=2, hang=4) for name in names or [best.name])
    if best is not None and report.bound_s:
        yield from _bound_lines(report, best)
    if best is not None and best.actions:
        yield b.Note(say_changes(best.actions), is_apart=True)
        yield _replayed_line(report)
        if best.seen is not None and best.seen.host_bytes:
            yield b.Note(f"It needs {format_bytes(best.seen.host_bytes)} of pinned host memory")
    if report.num_gpus > 1 and best is not None:
        yield from _several_lines(report)
    if report.smallest is not None:
        yield from _smallest_lines(report.smallest)
    if best is not None and best.configuration and report.plan is not None:
        yield b.Note(
            "The launcher's file cannot say checkpointing; the plan beside it does: start the "
            "launcher under `ullage exec --plan`",
            is_apart=True,
        )
    if report.ended:
        yield b.Note(
            f"The search stopped early: {report.ended}; this is the best plan so far",
            b.Tone.WARNING, is_apart=True,
        )  # fmt: skip
    yield from warning_lines(report.warnings, report.left_out)
    yield b.Note(f"Basis: memory as the phantom measured it; {_time_basis(report)}", is_apart=True)


def _front(report: FitReport) -> Iterator[b.Plot]:
    """The Pareto front: the time of a step against the memory that is used of the device."""
    if not report.front:
        return
    runs = [candidate for candidate in report.front_of_runs if candidate.time is not None]
    curves = [
        b.Series(
            "by the profile and the model of costs", [(1e3 * s, n / GIB) for s, n in report.front]
        ),
        b.Series("plans that ran", [*map(_point, runs)], b.Drawn.SQUARES),
    ]
    if report.best is not None:
        curves.append(
            b.Series("the best that was seen to fit", [_point(report.best)], b.Drawn.LARGE)
        )
    times = [point[0] for curve in curves for point in curve.points]
    yield b.Plot(
        curves,
        b.PlotAxis("milliseconds of a step", "{:,.1f}".format, low=0.95 * min(times)),
        b.PlotAxis("used of the device, GiB", "{:.2f}".format, marks=[
            b.PlotMark(report.budget_bytes / GIB, f"budget {format_bytes(report.budget_bytes, 2)}")
        ]),
    )  # fmt: skip


def _point(candidate: Candidate) -> tuple[float, float, str]:
    """A plan that ran: its likely time with the bounds in its name."""
    ends = [candidate.step_s] if candidate.time is None else candidate.time.step
    name = f"{candidate.name}: {format_interval(ends)}"
    return 1e3 * candidate.step_s, candidate.used_bytes / GIB, name


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


def _bound_lines(report: FitReport, best: Candidate) -> Iterator[b.Note]:
    yield b.Note(
        f"By the model, no mixture of these techniques on {len(report.blocks)} blocks that "
        f"needs as little takes less than {_ms(report.bound_s)} a step: the gap is "
        f"{100 * report.gap:.1f} %",
        is_apart=True,
    )
    if best.seen is not None and best.seen.num_retries:
        yield b.Note(
            f"The allocator had to release its cache {best.seen.num_retries} times; the time for "
            "that is not counted",
            b.Tone.WARNING,
        )


def warning_lines(warnings: Sequence[str], left_out: Mapping[str, str]) -> Iterator[b.Note]:
    """Warnings, and the techniques that were not used with reasons; some name their technique."""
    yield from (b.Note(f"warning: {warning}", b.Tone.WARNING) for warning in warnings)
    names: dict[str, list[str]] = {}
    for name, why in left_out.items():
        names.setdefault(why, []).append(name)
    for why, same in names.items():
        reason = why if why.startswith(repr(same[0])) else f"{', '.join(same)}: {why}"
        count = f" ({len(same)} techniques)" if len(same) > 1 else ""
        yield b.Note(f"left out: {reason}{count}", b.Tone.FAINT)


def _replayed_line(report: FitReport) -> b.Note:
    replayed = report.replayed
    if replayed is None:
        text = "It was not replayed with real numbers: the search ended first"
        return b.Note(text, b.Tone.WARNING)
    text = replayed.text
    tone = b.Tone.WARNING if replayed.not_done else b.Tone.PLAIN
    return b.Note(f"{text[:1].upper()}{text[1:]}", tone)


def _several_lines(report: FitReport) -> Iterator[b.Note]:
    worst, num = report.worst_rank, report.num_gpus
    if worst is not None:
        kinds = "all ranks are alike"
        if worst.num_distinct > 1:
            kinds = f"the ranks are of {worst.num_distinct} kinds, each of which was simulated"
        used = format_bytes(worst.used_bytes, 2)
        yield b.Note(f"Rank {worst.rank} takes the most, {used}; {kinds}", is_apart=True)
    if report.plan is not None:
        yield b.Note(
            f"Each rank trains on its own batch: a step is one on {num} times as many rows. Start "
            "it as:"
        )
        program = " ".join(report.program)
        yield b.Note(
            f"ullage exec --plan PLAN -- torchrun --nproc-per-node {num} {program}", indent=2
        )


def _smallest_lines(smallest: Smallest) -> Iterator[b.Note]:
    of_all = f"{format_bytes(smallest.used_bytes, 2)} of {format_bytes(smallest.total_bytes, 2)}"
    yield b.Note(f"The smallest GPU on which it fits: {smallest.gpu} ({of_all})", is_apart=True)
    yield b.Note(smallest.name, b.Tone.FAINT, indent=2)
    for gpu, why in smallest.too_small.items():
        yield b.Note(f"not {gpu}: {why}", b.Tone.FAINT, indent=2)


def _table(report: FitReport) -> b.Table:
    """The plans, the fastest first: the Pareto front of the plans that ran, then the others."""
    columns: dict[str, b.Column] = {"": b.LEFT, "step": b.RIGHT}
    if len(report.untimed) < len(report.candidates):
        columns["bounds"] = b.RIGHT
    if unit := _price_unit(report):
        columns[unit] = b.RIGHT
    columns |= {"device": b.RIGHT, "plan, Pareto front": b.REST}
    front = report.front_of_runs
    rest = [candidate for candidate in report.candidates if candidate not in front]
    names = Counter([report.best.name] if report.best else [])
    rows: b.Rows = [_row(report, candidate, names) for candidate in front]
    if rest:
        rows.append(b.Row(["", *[""] * (len(columns) - 2), "others"], b.Tone.FAINT))
    rows += [_row(report, candidate, names) for candidate in rest]
    return b.Table([*columns.values()], rows, [*columns], indent=0)


def _row(report: FitReport, candidate: Candidate, names: Counter[str]) -> b.Row:
    is_best = report.best is not None and _tell(candidate) == _tell(report.best)
    is_twin = bool(names[candidate.name]) and not is_best
    names[candidate.name] += 1
    cells: list[b.Cell] = [
        ">" if is_best else "",
        _ms(candidate.step_s) if candidate.step_s else "",
    ]
    cells += [_bounds(candidate)] if len(report.untimed) < len(report.candidates) else []
    cells += [_price(report, candidate)] if _price_unit(report) else []
    is_known = report.is_size_known(candidate)
    cells += [format_bytes(candidate.used_bytes, 2) if is_known else ""]
    name = b.Word(_name(report, candidate) + " (other blocks)" * is_twin)
    is_told = candidate.why and not is_best
    cells += [(name, b.Word(f": {candidate.why}", b.Tone.FAINT)) if is_told else (name,)]
    return b.Row(cells, b.Tone.STRONG if is_best else b.Tone.PLAIN)


def _name(report: FitReport, candidate: Candidate) -> str:
    """The name of a plan; first what the chosen plan does differently, as a line may be cut."""
    chosen = () if report.best is None else report.best.actions
    actions = sorted(candidate.actions, key=lambda action: action in chosen)
    is_named_so = candidate.name == name_plan(candidate.actions, report.blocks)
    return name_plan(actions, report.blocks) if is_named_so else candidate.name


def _bounds(candidate: Candidate) -> str:
    """The lower and the upper bound of a step: "19.9-38.1"."""
    if candidate.time is None:
        return "a sum"
    low, _, high = candidate.time.step
    return f"{1e3 * low:.1f}-{1e3 * high:.1f}"


def _price_unit(report: FitReport) -> str:
    """The unit of the prices in the table; empty: there are no prices."""
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


def ladder_line(report: LadderReport) -> str:
    """The result, in one line."""
    if report.failure:
        return f"failed: {report.failure}"
    where = f"{format_bytes(report.budget_bytes, 2)} of {report.gpu.slug}"
    rungs = f"{len(report.rungs)} rungs" if len(report.rungs) > 1 else "one rung"
    if not report.proved_to:
        return f"no {report.variable} fits {where}"
    line = f"{rungs} for {where}, proved up to {report.variable} {report.proved_to}"
    last = report.sizes[-1]
    return line if report.proved_to == last else f"{line}; no rung fits {last}"


def ladder_blocks(report: LadderReport) -> Iterator[b.Block]:
    """The rungs, and how far each is proved."""
    is_fine = report.proved_to == report.sizes[-1] and not report.failure
    yield b.Headline.of(ladder_line(report), b.Tone.GOOD if is_fine else b.Tone.BAD)
    yield b.Note(" ".join(report.program), b.Tone.FAINT, b.Overflow.CUT, indent=2)
    line = f"torch {report.torch}, {report.num_runs} runs in {report.wall_s:.1f} s, none on a GPU"
    yield b.Note(line, b.Tone.FAINT, indent=2)
    if not report.failure:
        yield b.SPACE
        yield _rungs_table(report)
    yield from warning_lines(report.warnings, report.left_out)
    sizes = ", ".join(map(str, report.sizes))
    yield b.Note(
        f"Basis: each rung ran on the phantom with {report.variable} {sizes}, from its first "
        "step on; what lies between is not proved. Times by the clock (`ullage run --time`)",
        is_apart=True,
    )


def _rungs_table(report: LadderReport) -> b.Table:
    rows: b.Rows = []
    for number, (rung, name) in enumerate(zip(report.rungs, report.names, strict=True)):
        proof = rung.proof
        rows.append(
            [
                str(number),
                "none" if proof is None else str(proof.size),
                "" if proof is None else format_bytes(proof.reserved_bytes, 2),
                "" if proof is None or not proof.step_s else f"{1e3 * proof.step_s:.2f} ms",
                name,
            ]
        )
    return b.Table(
        (b.RIGHT, b.RIGHT, b.RIGHT, b.RIGHT, b.LEFT),
        rows,
        ("rung", f"{report.variable} up to", "reserved", "step", "plan"),
        indent=0,
    )
