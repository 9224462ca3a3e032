"""The view of a sweep: a table with a bar for each run, the growth, and what fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ullage.answers import block_kinds as b
from ullage.clock.price import Dollars, Expense
from ullage.explain.compare.fastest import Fastest, find_fastest
from ullage.explain.compare.sweep import Line, Point, SweepReport, parse_number
from ullage.explain.stops import describe_stop
from ullage.explain.verdict import Verdict
from ullage.ground.units import GIB, format_bytes
from ullage.verbs.text.time.numbers import format_as, format_dollars, format_rate
from ullage.verbs.views.palette import USED_LOOK

# With several variables there is a linear fit for each setting of the others.
_MAX_LINES = 12


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


def sweep_blocks(report: SweepReport) -> Iterator[b.Block]:
    """The values that fit, the runs, the growth of memory, and its plot."""
    yield from (b.Headline.of(text, b.Tone.STRONG) for text in sweep_lines(report))
    yield b.Note(" ".join(report.template), b.Tone.FAINT, b.Overflow.CUT, indent=2)
    yield b.Note(_run_line(report), b.Tone.FAINT, indent=2)
    yield b.SPACE
    yield _table(report)
    lines = _lines(report)
    if lines:
        yield b.Title("Peak of allocated memory")
        yield from (b.Note(line, indent=2) for line in lines[:_MAX_LINES])
        if len(lines) > _MAX_LINES:
            yield b.Note(
                f"and {len(lines) - _MAX_LINES} more lines, all of them in --json", indent=2
            )
    yield from (b.Note(message, b.Tone.WARNING, is_apart=True) for message in _remarks(report))
    yield b.SPACE
    yield from (b.Note(line) for line in _basis(report))


def _run_line(report: SweepReport) -> str:
    runs = f"{len(report.points)} runs in {report.wall_s:.1f} s"
    torches = sorted({point.report.torch for point in report.points})
    gpus = ", ".join(gpu.name for gpu in report.gpus) if len(report.gpus) == 1 else ""
    return ", ".join(part for part in (gpus, *(f"torch {name}" for name in torches), runs) if part)


def _table(report: SweepReport) -> b.Table:
    """A line and a bar for each run; a bar across the whole column is the whole device."""
    names = [name for name, _ in report.variables]
    has_gpus = len(report.gpus) > 1
    times = _time_columns(report)
    texts = [
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
    rows: b.Rows = []
    bar_head = "of the largest" if report.is_unlimited else "of the device"
    largest = max((point.used_bytes for point in report.points), default=0)
    for point, row in zip(report.points, texts, strict=True):
        scale = largest if report.is_unlimited else point.setting.gpu.total_bytes
        rows.append(
            [*row, b.Bar(point.used_bytes if point.fits else 0, scale, USED_LOOK.color, None)]
        )
    columns = [*[b.RIGHT] * len(names), *[b.LEFT] * has_gpus, *[b.RIGHT] * (4 + len(times)), b.LEFT]
    return b.Table(columns, rows, [*head, bar_head], is_set_in=True)


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
    bases = [
        basis
        for point in report.points
        for basis in (point.report.allocator_basis, point.report.device_basis)
    ]
    assumptions = dict.fromkeys(
        assumption.what for basis in bases for assumption in basis.assumptions
    )
    if not assumptions:
        return ["Basis: exact"]
    margin = max(
        (d.headroom.context_margin_bytes for p in report.points for d in p.report.devices),
        default=0,
    )
    rest = len(assumptions) - 6
    return [
        f"Basis: assumed; the memory left uses the context's upper bound, ±{format_bytes(margin)}",
        *(f"  {what}" for what in list(assumptions)[:6]),
        *[f"  and {rest} more; each run's own are in --json"] * (rest > 0),
    ]


def sweep_plot(report: SweepReport) -> b.Plot:
    """The peaks of every run over the first numeric variable with several values, else as bars."""
    axis = next(
        (
            name
            for name, values in report.variables
            if len(values) > 1 and all(parse_number(value) is not None for value in values)
        ),
        None,
    )
    sizes = () if report.is_unlimited else report.gpus
    marks = [
        b.PlotMark(gpu.total_bytes / GIB, f"{gpu.slug} (a cross does not fit)") for gpu in sizes
    ]
    up = b.PlotAxis("GiB", marks=marks)
    if axis is not None:
        return b.Plot(_curves(report, axis), b.PlotAxis(axis), up)
    names = [
        "\n".join([*(value for _, value in point.setting.values), point.setting.gpu.slug])
        for point in report.points
    ]
    bars = [
        (at, point.used_bytes / GIB if point.fits else 0.0, _name(point))
        for at, point in enumerate(report.points)
    ]
    across = b.PlotAxis("", lambda at: names[round(at)], ticks=range(len(names)), low=-0.5)
    return b.Plot([b.Series("whole device", bars, b.Drawn.BARS)], across, up)


def _curves(report: SweepReport, axis: str) -> list[b.Series]:
    """Allocated memory and the whole device, for each setting of the other variables."""
    groups: dict[str, list[Point]] = {}
    for point in report.points:
        rest = [f"{name}={value}" for name, value in point.setting.values if name != axis]
        rest += [point.setting.gpu.slug] if len(report.gpus) > 1 else []
        groups.setdefault(", ".join(rest), []).append(point)
    curves = []
    for number, (where, members) in enumerate(groups.items()):
        which = f" ({where})" if where else ""
        xs = {id(point): float(dict(point.setting.values)[axis]) for point in members}
        fitting = sorted((p for p in members if p.fits), key=lambda p: xs[id(p)])
        used = [(xs[id(p)], p.used_bytes / GIB) for p in fitting]
        allocated = [(xs[id(p)], p.allocated_bytes / GIB) for p in fitting]
        over = [(xs[id(p)], p.setting.gpu.total_bytes / GIB) for p in members if not p.fits]
        curves += [
            b.Series(f"whole device{which}", used, color=number),
            b.Series(f"allocated{which}", allocated, b.Drawn.DASHES, number),
            b.Series("", over, b.Drawn.CROSSES, number),
        ]
    return curves
