"""The front's metrics, and its page for people, as of now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ullage.answers import block_kinds as b
from ullage.answers.html import render_page
from ullage.ground.units import format_bytes
from ullage.operate.doors.metric import Metric, Point, Type
from ullage.operate.doors.text_format import write_page
from ullage.operate.front.policy.engine_ledger import Engine
from ullage.operate.front.proxy.board import Board

METRICS_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
_REQUESTS: Final = Metric(
    "ullage_front_requests_total", Type.COUNTER, "Requests by tenant and what became of them."
)
_WAITING: Final = Metric("ullage_front_waiting_requests", Type.GAUGE, "Requests that wait.")
_BYTE_SECONDS: Final = Metric(
    "ullage_front_byte_seconds_total", Type.COUNTER, "Bytes of cache times seconds, by tenant."
)
_OF_ENGINES: Final[tuple[tuple[str, str, Callable[[Engine], float]], ...]] = (
    ("engine_up", "1 while the engine answers.", lambda each: each.is_up),
    ("engine_draining", "1 while nothing new is sent there.", lambda each: each.is_draining),
    ("engine_stale", "1 while the engine's metrics are old.", lambda each: each.is_stale),
    ("running_requests", "Requests in an engine.", lambda each: len(each.running)),
    ("cache_bytes", "Bytes of an engine's cache.", lambda each: each.spec.cache_bytes),
    ("usable_bytes", "Bytes that admission may give out.", lambda each: each.usable_bytes),
    ("held_bytes", "Bytes that requests hold now.", lambda each: each.bytes_now),
    ("expected_peak_bytes", "The most that those that run will hold.", Engine.peak_bytes),
)
_OF_TENANTS: Final = ("tenant", "waiting", "GiB s used", "fair counter", "requests")


def write_metrics(board: Board) -> bytes:
    """The page that Prometheus reads."""
    return write_page(_points(board), is_openmetrics=False)


def _points(board: Board) -> Iterator[Point]:
    for (tenant, outcome), count in sorted(board.outcomes.items()):
        yield Point(_REQUESTS, {"tenant": tenant, "outcome": outcome}, float(count))
    for tenant, count in board.admission.num_waiting.items():
        yield Point(_WAITING, {"tenant": tenant}, float(count))
        yield Point(_BYTE_SECONDS, {"tenant": tenant}, float(board.byte_seconds[tenant]))
    for name, text, read in _OF_ENGINES:
        metric = Metric(f"ullage_front_{name}", Type.GAUGE, text)
        for engine_name, engine in board.admission.engines.items():
            yield Point(metric, {"engine": engine_name}, float(read(engine)))


def write_admin_page(board: Board) -> bytes:
    """A page that loads itself anew each two seconds."""
    engines: b.Rows = [
        [name, *(_show(figure, read(engine)) for figure, _, read in _OF_ENGINES)]
        for name, engine in board.admission.engines.items()
    ]
    counters = board.admission.shares.counters
    tenants: b.Rows = []
    for tenant, waiting in board.admission.num_waiting.items():
        outcomes = ", ".join(
            f"{count} {outcome}"
            for (name, outcome), count in sorted(board.outcomes.items())
            if name == tenant
        )
        gib_seconds = board.byte_seconds[tenant] / 2**30
        cells = (tenant, str(waiting), f"{gib_seconds:,.0f}", f"{counters[tenant] / 2**30:,.0f}")
        tenants.append([*cells, outcomes])
    heads = ("engine", *(name.replace("_", " ") for name, *_ in _OF_ENGINES))
    blocks: list[b.Block] = [
        b.Headline.of("ullage front", b.Tone.STRONG),
        b.Table((b.LEFT, *[b.RIGHT] * len(_OF_ENGINES)), engines, heads),
        b.Table((b.LEFT, *[b.RIGHT] * 3, b.LEFT), tenants, _OF_TENANTS),
    ]
    return render_page("ullage front", blocks, refresh_s=2).encode()


def _show(figure: str, value: float) -> str:
    return format_bytes(int(value)) if figure.endswith("bytes") else str(int(value))
