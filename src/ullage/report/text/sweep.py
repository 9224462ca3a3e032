"""The text report of a sweep: a table with a bar for each run, the growth, and what fits.

render_sweep(report, width=80)        a text
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from ullage.clock.price import Dollars, Expense
from ullage.explain.compare.fastest import Fastest, find_fastest
from ullage.explain.compare.sweep import Line, Point, SweepReport, parse_number
from ullage.explain.stops import describe_stop
from ullage.explain.verdict import Verdict
from ullage.report.palette import USED_LOOK
from ullage.report.terminal import bar_mark, draw_bar, make_grid, print_parts, render
from ullage.report.text.time.numbers import format_as, format_dollars, format_rate
from ullage.units import format_bytes

_MIN_BAR, _MAX_BAR = 6, 24
# With several variables there is a linear fit for each setting of the others.
_MAX_LINES = 12
_GPU_SIDE: tuple[JustifyMethod, ...] = ("left",)
_SIZE_SIDES: tuple[JustifyMethod, ...] = ("right",) * 4


def render_sweep(report: SweepReport, width: int = 80) -> str:
    """The table and its conclusions, as a text without colour, `width` columns wide."""
    return render(lambda console: print_sweep(report, console), width)


def print_sweep(report: SweepReport, console: Console) -> None:
    """Prints the table and its conclusions."""
    print_parts(_parts(report, bar_mark(console), console.width), console)


def sweep_lines(report: SweepReport) -> list[str]:
    """The conclusions of a sweep: the smallest GPU or the largest values that fit, one per line."""
    lines = []
    if len(report.gpus) > 1:
        what = "all of it fits" if report.variables else "it fits"
        smallest = report.smallest_gpu
        lines.append(f"smallest GPU on which {what}: {smallest or 'none of these'}")
    if report.variables and not report.is_unlimited:
        lines += [_largest(report, gpu.slug) for gpu in report.gpus]
    if report.variables:
        lines += [_fastest(report, fastest) for fastest in find_fastest(report)]
    return lines


def _parts(report: SweepReport, bar: str, width: int) -> Iterator[RenderableType]:
    for text in sweep_lines(report):
        yield Text(text, style="bold")
    yield Text(f"  {' '.join(report.template)}", style="dim", overflow="ellipsis", no_wrap=True)
    yield Text(f"  {_run_line(report)}", style="dim")
    yield Text()
    yield _table(report, bar, width)
    lines = _lines(report)
    if lines:
        yield Text("\nPeak of allocated memory", style="bold")
        yield from (Text(f"  {line}") for line in lines[:_MAX_LINES])
        if len(lines) > _MAX_LINES:
            yield Text(f"  and {len(lines) - _MAX_LINES} more lines, all of them in --json")
    for message in _remarks(report):
        yield Text(f"\n{message}", style="yellow")
    yield Text()
    yield from (Text(line) for line in _basis(report))


def _run_line(report: SweepReport) -> str:
    runs = f"{len(report.points)} runs in {report.wall_s:.1f} s"
    torches = sorted({point.report.torch for point in report.points})
    gpus = ", ".join(gpu.name for gpu in report.gpus) if len(report.gpus) == 1 else ""
    return ", ".join(part for part in (gpus, *(f"torch {name}" for name in torches), runs) if part)


def _table(report: SweepReport, bar: str, width: int) -> Table:
    """A line and a bar for each run; a bar across the whole column is the whole device."""
    names = [name for name, _ in report.variables]
    has_gpus = len(report.gpus) > 1
    times = _time_columns(report)
    rows = [
        [
            *(value for _, value in point.setting.values),
            *([point.setting.gpu.slug] if has_gpus else []),
            *_sizes(point),
            *(cells[number] for cells in times.values()),
        ]
        for number, point in enumerate(report.points)
    ]
    last = "smallest GPU" if report.is_unlimited else "left"
    sizes = ["allocated", "reserved", "device", last]
    head = [*names, *(["GPU"] if has_gpus else []), *sizes, *times]
    sides: list[JustifyMethod] = ["right"] * len(names)
    time_sides: list[JustifyMethod] = ["right"] * len(times)
    table = make_grid("left", *sides, *_GPU_SIDE[:has_gpus], *_SIZE_SIDES, *time_sides, "left")
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    room = width - 4 - sum(widths) - 2 * len(widths)
    is_drawn = room >= _MIN_BAR
    bar_head = "of the largest" if report.is_unlimited else "of the device"
    table.add_row(
        "", *head, *([bar_head if len(bar_head) <= room else ""] if is_drawn else []), style="dim"
    )
    largest = max((point.used_bytes for point in report.points), default=0)
    for point, row in zip(report.points, rows, strict=True):
        scale = largest if report.is_unlimited else point.setting.gpu.total_bytes
        picture = draw_bar(USED_LOOK, point.used_bytes, scale, bar, min(room, _MAX_BAR))
        table.add_row("", *row, *([picture] if is_drawn and point.fits else []))
    return table


def _time_columns(report: SweepReport) -> dict[str, list[str]]:
    """The columns of time by their heads, a cell for each run that fits: the step's, and what a
    million tokens cost, or 1,000 steps where the number of tokens is not known.
    """
    runs = [point.report for point in report.points]
    times = [run.time if run.verdict is Verdict.FITS else None for run in runs]
    known_s = [time.step.s for time in times if time is not None]
    if not known_s:
        return {}
    cells = ["" if time is None else format_as(time.step.s, min(known_s)) for time in times]
    costs = [run.cost for run in runs]
    if not any(costs):
        return {"step": cells}
    has_tokens = all(cost.million_tokens is not None for cost in costs if cost is not None)
    amounts = [
        ""
        if cost is None or time is None
        else format_dollars(_amount(cost, of_tokens=has_tokens)[1:2])
        for cost, time in zip(costs, times, strict=True)
    ]
    return {"step": cells, "1M tokens" if has_tokens else "1,000 steps": amounts}


def _amount(cost: Expense, *, of_tokens: bool) -> Dollars:
    tokens = cost.million_tokens
    return tokens if of_tokens and tokens is not None else cost.thousand_steps


def _sizes(point: Point) -> list[str]:
    """The cells allocated, reserved, whole device, and headroom, or with unlimited memory the
    smallest GPU that fits. If a run does not fit, only the verdict, because its peaks end where it
    ran out of memory.
    """
    verdict = point.report.verdict
    if verdict is not Verdict.FITS:
        return ["", "", "", "does not fit" if verdict is Verdict.OUT_OF_MEMORY else "failed"]
    sizes = (point.allocated_bytes, point.reserved_bytes, point.used_bytes)
    smallest = next(iter(point.report.fits_on), "none")
    left = smallest if point.report.is_unlimited else format_bytes(point.headroom_bytes, 2)
    return [*(format_bytes(size, 2) for size in sizes), left]


def _lines(report: SweepReport) -> list[str]:
    """The growth of memory, products of variables first; GPUs with equal growth share a line."""
    gpus: dict[tuple[tuple[tuple[str, str], ...], str], list[str]] = {}
    for line in sorted(report.lines, key=lambda line: -line.variable.count("*")):
        gpus.setdefault((line.held, _line_text(report, line)), []).append(line.gpu)
    texts = []
    for (fixed, text), slugs in gpus.items():
        where = [f"{name}={value}" for name, value in fixed]
        where += slugs if len(slugs) < len(report.gpus) else []
        texts.append(f"{', '.join(where)}: {text}" if where else text)
    return texts


def _line_text(report: SweepReport, line: Line) -> str:
    """A linear fit: 1.64 GiB + 820.40 MiB per batch, from 2 on (7 runs, within 15.7 MiB)."""
    values = dict(report.variables).get(line.variable, ())
    numbers = [number for number in map(parse_number, values) if number is not None]
    begins = min(numbers, default=line.from_value)
    start = f", from {line.from_value:g} on" if line.from_value > begins else ""
    deviation = f", within {format_bytes(line.deviation_bytes)}"
    if not line.deviation_bytes:  # two points always lie on a line
        deviation = ", to the byte" if line.num_points > 2 else ""
    return (
        f"{format_bytes(line.fixed_bytes, 2)} + {format_bytes(line.bytes_per_unit, 2)} per "
        f"{line.variable}{start} ({line.num_points} runs{deviation})"
    )


def _largest(report: SweepReport, gpu: str) -> str:
    """The largest values that fit on a GPU, and the prediction of the linear fit."""
    where = f" on {gpu}" if len(report.gpus) > 1 else ""
    largest = report.largest(gpu)
    if not largest:
        return f"none of these fits{where or f' on {gpu}'}"
    settings = " or ".join(
        ", ".join(f"{name}={value}" for name, value in setting) for setting in largest[:4]
    )
    forecasts = [line for line in report.lines if line.gpu == gpu and line.forecast is not None]
    more = ""
    if len(report.variables) == 1 and forecasts:
        line = forecasts[0]
        how_many = f"{line.forecast} or more" if line.is_forecast_capped else f"{line.forecast}"
        more = f" (run); the linear fit predicts {how_many}"
    return f"largest that fits{where}: {settings}{more}"


def _fastest(report: SweepReport, fastest: Fastest) -> str:
    """The fastest run on a GPU; where the order is not sure, those that are about as fast."""
    where = f" on {fastest.gpu}" if len(report.gpus) > 1 else ""
    rate, what = "", "shortest step"
    if fastest.tokens_per_s:
        rate, what = f", {format_rate(fastest.tokens_per_s)} tokens/s", "fastest for each token"
    text = f"{what}{where}: {_values(fastest.point)}{rate}"
    if not fastest.alike:
        return text
    others = "; ".join(_values(point) for point in fastest.alike[:4])
    return f"{text}; about as fast: {others}"


def _values(point: Point) -> str:
    return ", ".join(f"{name}={value}" for name, value in point.setting.values)


def _remarks(report: SweepReport) -> Iterator[str]:
    """The failures and warnings of the runs, each once."""
    messages: dict[str, list[str]] = {}
    for point in report.points:
        if point.report.stop is not None:
            messages.setdefault(describe_stop(point.report.stop), []).append(_name(point))
        if point.report.verdict is Verdict.FAILED:
            messages.setdefault(f"failed: {point.report.reason}", []).append(_name(point))
        for warning in point.report.warnings:
            messages.setdefault(f"warning: {warning}", []).append(_name(point))
    for message, names in messages.items():
        runs = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        yield f"{message} ({runs})"
    if report.fresh_because:
        yield f"every run started a new process, which takes longer: {report.fresh_because}"
    if report.was_interrupted:
        yield "interrupted: the table has the runs that had finished"


def _name(point: Point) -> str:
    """The name of a run: its values, or its GPU if only the GPU varies."""
    parts = [f"{name}={value}" for name, value in point.setting.values]
    return " ".join(parts) or point.setting.gpu.slug


def _basis(report: SweepReport) -> Sequence[str]:
    """The basis of the answers, over all runs."""
    bases = [b for p in report.points for b in (p.report.allocator_basis, p.report.device_basis)]
    assumptions = dict.fromkeys(
        assumption.what for basis in bases for assumption in basis.assumptions
    )
    if not assumptions:
        return ["Basis: exact"]
    margin = max(
        (d.headroom.context_margin_bytes for p in report.points for d in p.report.devices),
        default=0,
    )
    return [
        f"Basis: assumed; the memory left uses the context's upper bound, ±{format_bytes(margin)}",
        *(f"  {what}" for what in list(assumptions)[:6]),
        *(
            [f"  and {len(assumptions) - 6} more; each run's own are in --json"]
            if len(assumptions) > 6
            else []
        ),
    ]
