"""The view of a server's run: latencies, load, cache, memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ullage.answers import block_kinds as b
from ullage.ground.units import format_bytes
from ullage.operate.serve.cache_bytes import real_cache
from ullage.operate.serve.curve import Curve
from ullage.operate.serve.host_time import MEASURED, NO_HOST_TIME, HostTime
from ullage.operate.serve.measures import ClassMeasures, OccupancyRow, Percentiles
from ullage.operate.serve.outcome import Engine, Levels
from ullage.operate.serve.report import ServeReport
from ullage.verbs.text.time.numbers import format_rate, format_seconds, format_share
from ullage.verbs.views.palette import part_look

_MAX_SHOWN: Final = 3
_PERCENTILES: Final = ("p50", "p90", "p99")
_FIRST: Final = "time to the first token"
_AFTER: Final = "time for each token after"
_USAGE: Final = b.PlotAxis("cache in use, %", high=100.0)


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


def serve_blocks(report: ServeReport) -> Iterator[b.Block]:
    """The outcome of the requests, and the memory, the latencies and the load."""
    served, measures = report.served, report.measures
    outcome, engine = served.outcome, served.outcome.engine
    yield b.Headline.of(
        serve_line(report), b.Tone.BAD if outcome.num_stuck or outcome.rejected else b.Tone.GOOD
    )
    yield b.Note(" ".join(served.command), b.Tone.FAINT, b.Overflow.CUT, indent=2)
    yield b.Note(
        f"{served.gpu}, {engine.name} {engine.version}, virtual time", b.Tone.FAINT, indent=2
    )
    yield b.SPACE
    yield b.Detail((_device(engine),))
    yield _memory(report)
    yield b.SPACE
    yield _latencies(measures.classes, has_slo=report.slo is not None)
    yield b.SPACE
    yield _load(report)
    curve = report.curve
    if curve is not None:
        yield b.Title(knee_line(curve))
        yield _curve(curve)
        yield from _plots_by_load(curve)
    by_occupancy = measures.by_occupancy if curve is None else curve.by_occupancy
    if len(by_occupancy) > 1:
        loads = "" if curve is None else ", at all loads"
        yield b.Title(f"By the cache's occupancy when the request arrived{loads}")
        yield _occupancy(by_occupancy)
        yield from _plots_by_occupancy(by_occupancy)
    yield from _plots_over_time(outcome.levels)
    for number, line in enumerate(remark_lines(report)):
        tone = b.Tone.BAD if outcome.num_stuck else b.Tone.WARNING
        yield b.Note(line, tone, is_apart=number == 0)
    yield from _basis(report)


def _memory(report: ServeReport) -> b.Table:
    engine, devices = report.served.outcome.engine, report.served.report.devices
    step_bytes = engine.peak_activation_bytes
    rows = [
        ["weights", format_bytes(engine.weights_bytes, 2), ""],
        ["step and graphs", format_bytes(step_bytes, 2), "profiled by the engine"],
        [
            "cache",
            format_bytes(engine.kv_cache_bytes, 2),
            (
                f"{engine.kv_cache_tokens:,} tokens in {engine.num_blocks:,} blocks of "
                f"{engine.block_tokens}, {engine.max_concurrency:.2f} requests of "
                f"{engine.max_model_len:,}"
            ),
        ],
    ]
    cache, first = real_cache(engine, report.served.gpu), report.served.first
    if cache is not None:
        tokens = f"{cache.tokens:,} tokens ({cache.low_tokens:,} to {cache.high_tokens:,})"
        rows.append(["on a real GPU", format_bytes(cache.bytes, 2), tokens])
    if first is not None:
        tokens = f"{first.kv_cache_tokens:,} tokens, without a compile cache"
        rows.append(["a first start", format_bytes(first.kv_cache_bytes, 2), tokens])
    if devices:
        note = f"of {format_bytes(devices[0].gpu.total_bytes, 2)}, the highest"
        rows.append(["whole device", format_bytes(devices[0].peak_used_bytes, 2), note])
    return b.Table((b.LEFT, b.RIGHT, b.LEFT), rows, indent=0)


def _device(engine: Engine) -> b.Table:
    """The parts of the whole device, to scale."""
    outside = engine.device_used_bytes - engine.weights_bytes - engine.kv_cache_bytes
    step_bytes = min(engine.peak_activation_bytes, max(0, outside))
    parts = (
        ("weights", engine.weights_bytes),
        ("cache", engine.kv_cache_bytes),
        ("step and graphs", step_bytes),
        ("context and libraries", max(0, outside - step_bytes)),
        ("free", max(0, engine.device_bytes - engine.device_used_bytes)),
    )
    rows: b.Rows = [
        [name, format_bytes(size, 2), b.Bar(size, engine.device_bytes, part_look(name).color)]
        for name, size in parts
    ]
    return b.Table((b.LEFT, b.RIGHT, b.LEFT), rows)


def _latencies(classes: tuple[ClassMeasures, ...], *, has_slo: bool) -> b.Table:
    goodput = ["good"] if has_slo else []
    rows: b.Rows = []
    for each in classes:
        name = "all requests" if each.name == "all" else each.name
        cells = [f"{100 * each.goodput_frac:.1f} %"] if each.goodput_frac is not None else goodput
        rows.append([name, "p50", "p90", "p99", *cells])
        for label, values in (
            ("  to the first token", each.ttft_s),
            ("  for each token after", each.tpot_s),
            ("  to the last token", each.e2e_s),
            ("  in the queue", each.queue_s),
        ):
            rows.append([label, *_cells(values), *([""] * len(goodput))])
    return b.Table((b.LEFT, *[b.RIGHT] * (3 + len(goodput))), rows, indent=0)


def _cells(values: Percentiles) -> list[str]:
    return ["-" if value is None else format_seconds(value) for value in values]


def _load(report: ServeReport) -> b.Table:
    outcome, measures = report.served.outcome, report.measures
    rows: b.Rows = []
    rate = format_rate(measures.requests_per_s)
    rows.append(["throughput", f"{rate}/s", f"requests over {format_seconds(outcome.duration_s)}"])
    if measures.good_requests_per_s is not None and report.slo is not None:
        rows.append(
            ["goodput", f"{format_rate(measures.good_requests_per_s)}/s", report.slo.text()]
        )
    peak, mean = outcome.usage_peak_frac, outcome.usage_mean_frac
    rows.append(["cache in use", f"{100 * mean:.0f} %", f"on average, {100 * peak:.0f} % at most"])
    preempted = f"times, of {measures.num_preempted:,} requests"
    rows.append(["preemptions", f"{measures.num_preemptions:,}", preempted])
    hits = f"{100 * measures.prefix_hit_frac:.0f} %"
    rows.append(["prefix hits", hits, "of the prompts' tokens"])
    if outcome.stored_bytes:
        back = f"of the cache to the host, {format_bytes(outcome.loaded_bytes, 2)} back"
        rows.append(["offloaded", format_bytes(outcome.stored_bytes, 2), back])
    rows.append(["waiting", f"{measures.queue_peak:,}", "requests at most"])
    busy = (
        f"of the time busy, {outcome.num_steps:,} steps: "
        f"{format_share(outcome.prompt_s, outcome.device_s)} with prompts; "
        f"{format_share(outcome.attention_s, outcome.device_s)} is attention"
    )
    rows.append(["device", f"{100 * (1 - measures.idle_frac):.0f} %", busy])
    return b.Table((b.LEFT, b.RIGHT, b.LEFT), rows, indent=0)


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


def _curve(curve: Curve) -> b.Table:
    has_good = any(point.measures.good_requests_per_s is not None for point in curve.points)
    rows: b.Rows = []
    good = ["good/s"] if has_good else []
    head = ("load", "sent/s", "done/s", *good, "first p50", "p99", "each p50", "p99", "cache")
    for point in curve.points:
        everyone = point.measures.classes[0]
        first, each = _cells(everyone.ttft_s), _cells(everyone.tpot_s)
        mark = "knee " if point is curve.knee else ""
        cells = [_rate(point.offered_per_s), _rate(point.measures.requests_per_s)]
        if has_good:
            cells.append(_rate(point.measures.good_requests_per_s))
        rows.append(
            [
                f"{mark}{point.load:g}",
                *cells,
                first[0],
                first[2],
                each[0],
                each[2],
                f"{100 * point.usage_peak_frac:.0f} %",
            ]
        )
    return b.Table([b.RIGHT] * (8 + has_good), rows, head)


def _occupancy(bins: Sequence[OccupancyRow]) -> b.Table:
    rows: b.Rows = []
    head = ("cache", "requests", "first p50", "first p99", "each p50", "each p99")
    for row in bins:
        first, each = _cells(row.ttft_s), _cells(row.tpot_s)
        span = f"{100 * row.low_frac:.0f} to {100 * row.high_frac:.0f} %"
        rows.append([span, f"{row.num_requests:,}", first[0], first[2], each[0], each[2]])
    return b.Table((b.LEFT, *[b.RIGHT] * 5), rows, head)


def _plots_by_load(curve: Curve) -> Iterator[b.Plot]:
    loads = [point.load for point in curve.points]
    across = b.PlotAxis(
        "times the traffic's rate", is_log=max(loads) >= 4 * min(loads), ticks=loads,
        marks=[b.PlotMark(curve.knee.load, "knee")],
    )  # fmt: skip
    everyone = [(point.load, point.measures.classes[0]) for point in curve.points]
    yield _percentiles([(at, each.ttft_s) for at, each in everyone], across, _FIRST)
    yield _percentiles([(at, each.tpot_s) for at, each in everyone], across, _AFTER)
    good = [(p.load, p.measures.good_requests_per_s) for p in curve.points]
    rates = [
        b.Series("answered", [(p.load, p.measures.requests_per_s) for p in curve.points]),
        b.Series("within the objective", [(x, rate) for x, rate in good if rate is not None]),
        b.Series("sent", [(p.load, p.offered_per_s) for p in curve.points if p.offered_per_s]),
    ]
    yield b.Plot(rates, across, b.PlotAxis("requests a second", "{:,g}".format))
    usage = [
        b.Series("at most", [(p.load, 100 * p.usage_peak_frac) for p in curve.points]),
        b.Series("on average", [(p.load, 100 * p.usage_mean_frac) for p in curve.points]),
    ]
    yield b.Plot(usage, across, _USAGE)


def _plots_by_occupancy(rows: Sequence[OccupancyRow]) -> Iterator[b.Plot]:
    across = b.PlotAxis("% of the cache in use at the arrival", high=100.0)
    middles = [50 * (row.low_frac + row.high_frac) for row in rows]
    for label, values in (
        (_FIRST, [row.ttft_s for row in rows]),
        (_AFTER, [r.tpot_s for r in rows]),
    ):
        yield _percentiles([*zip(middles, values, strict=True)], across, label)


def _plots_over_time(levels: Levels) -> Iterator[b.Plot]:
    if len(levels.time_s) < 2:
        return
    across = b.PlotAxis("seconds of the traffic", "{:,g}".format)

    def curve(name: str, values: Sequence[float]) -> b.Series:
        return b.Series(name, [*zip(levels.time_s.tolist(), values, strict=True)])

    running, waiting = levels.running.tolist(), levels.waiting.tolist()
    requests = [curve("running", running), curve("waiting", waiting)]
    yield b.Plot(requests, across, b.PlotAxis("requests", "{:,g}".format))
    yield b.Plot([curve("in use", (100 * levels.usage_frac).tolist())], across, _USAGE)


def _percentiles(
    rows: Sequence[tuple[float, Percentiles]], across: b.PlotAxis, label: str
) -> b.Plot:
    """A curve for each percentile; a logarithmic axis, since the last is far above the first."""
    curves = []
    for at, name in enumerate(_PERCENTILES):
        known = [(x, values[at]) for x, values in rows]
        curves.append(b.Series(name, [(x, value) for x, value in known if value is not None]))
    return b.Plot(curves, across, b.PlotAxis(label, format_seconds, is_log=True))


def remark_lines(report: ServeReport) -> Iterator[str]:
    """The remarks that a reader must know before the figures."""
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
    """The basis of the figures."""
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


def _basis(report: ServeReport) -> Iterator[b.Block]:
    outcome = report.served.outcome
    yield b.Note(f"Basis: {basis_line(report)}", is_apart=True)
    for what in outcome.left_out:
        yield b.Note(f"warning: no time for the attention of {what}", b.Tone.WARNING)
    if outcome.engine.ignored:
        yield b.Note(
            f"not for the engine, ignored: {' '.join(outcome.engine.ignored)}", b.Tone.WARNING
        )
