"""The text report of a server's run.

render_serve(report, width=80)    a text
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Console, JustifyMethod, RenderableType
from rich.text import Text

from ullage.report.terminal import make_grid, print_parts, render
from ullage.report.text.time.numbers import format_rate, format_seconds, format_share
from ullage.serve.cache_bytes import real_cache
from ullage.serve.curve import Curve
from ullage.serve.host_time import MEASURED, NO_HOST_TIME, HostTime
from ullage.serve.measures import ClassMeasures, OccupancyRow, Percentiles
from ullage.serve.report import ServeReport
from ullage.units import format_bytes

_MAX_SHOWN: Final = 3


def render_serve(report: ServeReport, width: int = 80) -> str:
    """The report as a text without colour, `width` columns wide."""
    return render(lambda console: print_serve(report, console), width)


def print_serve(report: ServeReport, console: Console) -> None:
    """Prints the report."""
    print_parts(_parts(report), console)


def serve_line(report: ServeReport) -> str:
    """The result, in one line."""
    outcome, measures = report.served.outcome, report.measures
    everyone = measures.classes[0]
    line = (
        f"{everyone.num_answered:,} of {everyone.num_requests:,} requests answered, "
        f"{format_rate(measures.output_tokens_per_s)} tokens/s"
    )
    if everyone.goodput_frac is not None:
        line += f", {100 * everyone.goodput_frac:.1f} % within the objective"
    if outcome.num_stuck:
        line += f"; {outcome.num_stuck:,} can never be answered"
    return line


def _parts(report: ServeReport) -> Iterator[RenderableType]:
    served, measures = report.served, report.measures
    outcome, engine = served.outcome, served.outcome.engine
    style = "bold red" if outcome.num_stuck or outcome.rejected else "bold green"
    yield Text(serve_line(report), style=style)
    yield Text(f"  {' '.join(served.command)}", style="dim", overflow="ellipsis", no_wrap=True)
    yield Text(f"  {served.gpu}, {engine.name} {engine.version}, virtual time", style="dim")
    yield Text()
    yield _memory(report)
    yield Text()
    yield _latencies(measures.classes, report.slo is not None)
    yield Text()
    yield _load(report)
    curve = report.curve
    if curve is not None:
        yield Text(f"\n{knee_line(curve)}")
        yield _curve(curve)
    by_occupancy = measures.by_occupancy if curve is None else curve.by_occupancy
    if len(by_occupancy) > 1:
        yield Text(
            "\nBy the cache's occupancy when the request arrived"
            + ("" if curve is None else ", at all loads")
        )
        yield _occupancy(by_occupancy)
    lines = list(remark_lines(report))
    if lines:
        yield Text("\n" + "\n".join(lines), style="bold red" if outcome.num_stuck else "yellow")
    yield from _basis(report)


def _memory(report: ServeReport) -> RenderableType:
    outcome = report.served.outcome
    engine, grid = outcome.engine, make_grid("left", "right", "left")
    devices = report.served.report.devices
    grid.add_row("weights", format_bytes(engine.weights_bytes, 2), "")
    grid.add_row(
        "step and graphs", format_bytes(engine.peak_activation_bytes, 2), "profiled by the engine"
    )
    grid.add_row(
        "cache", format_bytes(engine.kv_cache_bytes, 2),
        f"{engine.kv_cache_tokens:,} tokens in {engine.num_blocks:,} blocks of "
        f"{engine.block_tokens}, {engine.max_concurrency:.2f} requests of "
        f"{engine.max_model_len:,}",
    )  # fmt: skip
    cache = real_cache(engine, report.served.gpu)
    if cache is not None:
        grid.add_row(
            "on a real GPU", format_bytes(cache.bytes, 2),
            f"{cache.tokens:,} tokens ({cache.low_tokens:,} to {cache.high_tokens:,})",
        )  # fmt: skip
    first = report.served.first
    if first is not None:
        grid.add_row(
            "a first start", format_bytes(first.kv_cache_bytes, 2),
            f"{first.kv_cache_tokens:,} tokens, without a compile cache",
        )  # fmt: skip
    if devices:
        device = devices[0]
        note = f"of {format_bytes(device.gpu.total_bytes, 2)}, the highest"
        grid.add_row("whole device", format_bytes(device.peak_used_bytes, 2), note)
    return grid


def _latencies(classes: tuple[ClassMeasures, ...], has_slo: bool) -> RenderableType:  # noqa: FBT001
    goodput = ["good"] if has_slo else []
    sides: list[JustifyMethod] = ["left", *["right"] * (3 + len(goodput))]  # type: ignore[list-item]
    grid = make_grid(*sides)
    for each in classes:
        name = "all requests" if each.name == "all" else each.name
        cells = [f"{100 * each.goodput_frac:.1f} %"] if each.goodput_frac is not None else goodput
        grid.add_row(name, "p50", "p90", "p99", *cells)
        for label, values in (
            ("  to the first token", each.ttft_s),
            ("  for each token after", each.tpot_s),
            ("  to the last token", each.e2e_s),
            ("  in the queue", each.queue_s),
        ):
            grid.add_row(label, *_cells(values), *([""] * len(goodput)))
    return grid


def _cells(values: Percentiles) -> list[str]:
    return ["-" if value is None else format_seconds(value) for value in values]


def _load(report: ServeReport) -> RenderableType:
    outcome, measures = report.served.outcome, report.measures
    grid = make_grid("left", "right", "left")
    rate = format_rate(measures.requests_per_s)
    grid.add_row("throughput", f"{rate}/s", f"requests over {format_seconds(outcome.duration_s)}")
    if measures.good_requests_per_s is not None and report.slo is not None:
        grid.add_row("goodput", f"{format_rate(measures.good_requests_per_s)}/s", report.slo.text())
    peak, mean = outcome.usage_peak_frac, outcome.usage_mean_frac
    grid.add_row("cache in use", f"{100 * mean:.0f} %", f"on average, {100 * peak:.0f} % at most")
    preempted = f"times, of {measures.num_preempted:,} requests"
    grid.add_row("preemptions", f"{measures.num_preemptions:,}", preempted)
    hits = f"{100 * measures.prefix_hit_frac:.0f} %"
    grid.add_row("prefix hits", hits, "of the prompts' tokens")
    if outcome.stored_bytes:
        back = f"of the cache to the host, {format_bytes(outcome.loaded_bytes, 2)} back"
        grid.add_row("offloaded", format_bytes(outcome.stored_bytes, 2), back)
    grid.add_row("waiting", f"{measures.queue_peak:,}", "requests at most")
    grid.add_row(
        "device", f"{100 * (1 - measures.idle_frac):.0f} %",
        f"of the time busy, {outcome.num_steps:,} steps: "
        f"{format_share(outcome.prompt_s, outcome.device_s)} with prompts; "
        f"{format_share(outcome.attention_s, outcome.device_s)} is attention",
    )  # fmt: skip
    return grid


def knee_line(curve: Curve) -> str:
    """Where the knee is, and where most requests are within the objective."""
    is_last = len(curve.points) > 1 and curve.knee is curve.points[-1]
    line = (
        f"Knee at {curve.knee.load:g} times the load{' or beyond' if is_last else ''}: "
        f"{_rate(curve.knee.measures.requests_per_s)} requests/s"
    )
    if curve.best is not None:
        good = _rate(curve.best.measures.good_requests_per_s)
        line += f"; most within the objective at {curve.best.load:g}: {good}/s"
    return line


def _rate(per_s: float | None) -> str:
    return "-" if per_s is None else format_rate(per_s)


def _curve(curve: Curve) -> RenderableType:
    has_good = any(point.measures.good_requests_per_s is not None for point in curve.points)
    sides: list[JustifyMethod] = ["right"] * (8 + has_good)
    grid = make_grid(*sides)
    good = ["good/s"] if has_good else []
    grid.add_row(
        "  load", "sent/s", "done/s", *good, "first p50", "p99", "each p50", "p99", "cache"
    )
    for point in curve.points:
        everyone = point.measures.classes[0]
        first, each = _cells(everyone.ttft_s), _cells(everyone.tpot_s)
        mark = "knee " if point is curve.knee else ""
        cells = [_rate(point.offered_per_s), _rate(point.measures.requests_per_s)]
        if has_good:
            cells.append(_rate(point.measures.good_requests_per_s))
        grid.add_row(
            f"  {mark}{point.load:g}", *cells, first[0], first[2], each[0], each[2],
            f"{100 * point.usage_peak_frac:.0f} %",
        )  # fmt: skip
    return grid


def _occupancy(rows: tuple[OccupancyRow, ...]) -> RenderableType:
    grid = make_grid("left", "right", "right", "right", "right", "right")
    grid.add_row("  cache", "requests", "first p50", "first p99", "each p50", "each p99")
    for row in rows:
        first, each = _cells(row.ttft_s), _cells(row.tpot_s)
        span = f"  {100 * row.low_frac:.0f} to {100 * row.high_frac:.0f} %"
        grid.add_row(span, f"{row.num_requests:,}", first[0], first[2], each[0], each[2])
    return grid


def remark_lines(report: ServeReport) -> Iterator[str]:
    """What a reader must know before the figures."""
    outcome = report.served.outcome
    if outcome.rejected:
        yield f"{len(outcome.rejected):,} requests were refused by the engine"
        for index, why in list(outcome.rejected.items())[:_MAX_SHOWN]:
            yield f"  request {index + 1}: {why.splitlines()[0]}"
    if outcome.num_stuck:
        yield (
            f"{outcome.num_stuck:,} requests fit max_model_len, and never the cache: they wait "
            "for ever. Give the cache more room, or lower --max-model-len"
        )
    if outcome.traffic.num_left_out:
        yield (
            f"{outcome.traffic.num_left_out:,} rows of the trace have no prompt or no answer, "
            "and were left out"
        )


def basis_line(report: ServeReport) -> str:
    """What the figures rest on."""
    chosen = report.served.outcome.experts_chosen
    experts = f", experts what {chosen} for each token take, all as likely, assumed" * bool(chosen)
    return (
        "the engine's own start, scheduler and blocks; a step takes what steps of its size took on "
        "the phantom by its clock, and attention what the tables say for its contexts"
        f"{experts}. {_host_sentence(report.served.host)}"
    )


def _host_sentence(host: HostTime) -> str:
    if host == NO_HOST_TIME:
        return "Not counted: the HTTP server, tokenizing, scheduling on the CPU"
    times = (format_seconds(seconds) for seconds in host)
    step, request, launch, http, prompt, answer = times
    source = ", as one server was measured" if host == MEASURED else ""
    return (
        f"Assumed of the host{source}: {step} for a step, {request} for each request in it and "
        f"{launch} to launch each of its kernels; in the HTTP server {http} for each request, "
        f"{prompt} for a token of its prompt and {answer} for each that it streams"
    )


def _basis(report: ServeReport) -> Iterator[RenderableType]:
    outcome = report.served.outcome
    yield Text(f"\nBasis: {basis_line(report)}")
    for what in outcome.left_out:
        yield Text(f"warning: no time for the attention of {what}", style="yellow")
    if outcome.engine.ignored:
        yield Text(f"not for the engine, ignored: {' '.join(outcome.engine.ignored)}", "yellow")
