"""A search for a plan, for people and for programs.

render_fit(report, width=80)        a text
fit_document(report)                what json.dumps takes, schema "ullage.fit/1"
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ullage.plan.findings import Candidate, FitReport
from ullage.report.palette import USED_LOOK
from ullage.report.terminal import bar_mark, draw_bar, make_grid, print_parts, render
from ullage.units import format_bytes

FIT_SCHEMA: Final = "ullage.fit/1"
_BAR_WIDTH: Final = 12


def fit_document(report: FitReport) -> dict[str, Any]:
    """The document of a search; sizes are bytes, times seconds of a step by the model of costs."""
    return {
        "schema": FIT_SCHEMA,
        "verdict": _verdict(report),
        "program": list(report.program),
        "torch": report.torch,
        "gpu": report.gpu.slug,
        "total_bytes": report.gpu.total_bytes,
        "budget_bytes": report.budget_bytes,
        "exit_code": int(report.exit_code),
        "failure": report.failure or None,
        "warnings": list(report.warnings),
        "plan": None if report.plan is None else report.plan.document,
        "best": None if report.best is None else _candidate(report.best),
        "as_it_is": _candidate(report.as_it_is),
        "candidates": [_candidate(one) for one in report.candidates],
        "front": [{"step_s": time, "peak_used_bytes": used} for time, used in report.front],
        "bound_s": report.bound_s,
        "gap_frac": report.gap,
        "blocks": [{"path": one.path, "class": one.kind} for one in report.blocks],
        "left_out": dict(report.left_out),
        "smallest_gpu": report.smallest_gpu,
        "num_runs": report.num_runs,
        "wall_s": round(report.wall_s, 3),
    }


def render_fit(report: FitReport, width: int = 80) -> str:
    """The report as a text without colour, `width` columns wide."""
    return render(lambda console: print_fit(report, console), width)


def print_fit(report: FitReport, console: Console) -> None:
    """Prints the report."""
    print_parts(_parts(report, bar_mark(console)), console)


def fit_line(report: FitReport) -> str:
    """What it comes to, in one line."""
    where = f"{format_bytes(report.budget_bytes, 2)} of {report.gpu.slug}"
    if report.failure:
        return f"failed: {report.failure}"
    best = report.best
    if best is None or best.seen is None:
        return f"nothing that was tried fits {where}"
    if not best.actions:
        return f"fits {where} as it is: {format_bytes(best.seen.used_bytes, 2)}"
    slower = 100 * (best.step_s / report.as_it_is.step_s - 1)
    return (
        f"fits {where} under a plan: {best.name}; {format_bytes(best.seen.used_bytes, 2)}, a step "
        f"takes {abs(slower):.1f} % {'more' if slower >= 0 else 'less'}"
    )


def _parts(report: FitReport, bar: str) -> Iterator[RenderableType]:
    yield Text(fit_line(report), style="bold green" if report.best else "bold red")
    yield Text(f"  {' '.join(report.program)}", style="dim", overflow="ellipsis", no_wrap=True)
    told = f"  torch {report.torch}, {report.num_runs} runs in {report.wall_s:.1f} s"
    yield Text(told, style="dim")
    if report.failure:
        return
    yield Text()
    yield _table(report, bar)
    if report.best is not None:
        yield Text(
            f"\nBy the model, no mixture of these techniques on {len(report.blocks)} blocks that "
            f"needs as little takes less than {_ms(report.bound_s)} a step: the gap is "
            f"{100 * report.gap:.1f} %"
        )
        if report.best.seen is not None and report.best.seen.num_retries:
            yield Text(
                f"The allocator had to give back its cache {report.best.seen.num_retries} times to "
                "go on, which takes time that is not counted",
                style="yellow",
            )
    if report.smallest_gpu is not None:
        yield Text(f"Smallest GPU on which a plan was seen to fit: {report.smallest_gpu}")
    for warning in report.warnings:
        yield Text(f"warning: {warning}", style="yellow")
    for name, why in report.left_out.items():
        yield Text(f"left out: {name}: {why}", style="dim")
    yield Text(
        "\nBasis: memory as it was seen on the phantom; times by a model of costs (roofline and "
        "host link, rates as the makers state them)"
    )


def _table(report: FitReport, bar: str) -> Table:
    """The plans, fastest first, each with a bar as long as the budget and why it was not chosen."""
    table = make_grid("left", "right", "right", "left", "left")
    table.add_row("", "step", "device", "of the budget", "plan", style="dim")
    for one in report.candidates:
        is_best = report.best is not None and one.name == report.best.name
        ran = one.seen is None or one.seen.fits or one.used_bytes > report.budget_bytes
        drawn = draw_bar(USED_LOOK, one.used_bytes, report.budget_bytes, bar, _BAR_WIDTH)
        told = Text(one.name, style="bold" if is_best else "")
        why = _merit(report, one) if is_best else one.why
        table.add_row(
            ">" if is_best else "",
            _ms(one.step_s),
            format_bytes(one.used_bytes, 2) if ran else "",
            drawn if ran else "",
            told.append(f": {why}", style="" if is_best else "dim") if why else told,
        )
    return table


def _merit(report: FitReport, best: Candidate) -> str:
    """Why a plan was chosen: by time, or by memory where faster ones fit too."""
    fitting = [one.step_s for one in report.candidates if one.seen is not None and one.seen.fits]
    return "the least memory" if min(fitting) < best.step_s else "the fastest that fits"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def _verdict(report: FitReport) -> str:
    if report.failure:
        return "failed"
    if report.best is None:
        return "does_not_fit"
    return "fits_under_plan" if report.best.actions else "fits"


def _candidate(one: Candidate) -> dict[str, Any]:
    seen = one.seen
    return {
        "name": one.name,
        "actions": [
            {
                "technique": action.technique,
                "modules": list(action.modules),
                "settings": dict(action.settings),
            }
            for action in one.actions
        ],
        "step_s": one.step_s,
        "peak_allocated_bytes": one.peak_bytes,
        "peak_used_bytes": one.used_bytes,
        "why_not": one.why or None,
        "seen": None
        if seen is None
        else {
            "fits": seen.fits,
            "peak_used_bytes": seen.used_bytes,
            "peak_allocated_bytes": seen.allocated_bytes,
            "num_alloc_retries": seen.num_retries,
            "host_bytes": seen.host_bytes,
        },
    }
