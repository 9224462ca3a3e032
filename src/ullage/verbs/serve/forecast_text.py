"""The view of a forecast of a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ullage.answers import block_kinds as b
from ullage.ground.units import format_bytes
from ullage.operate.serve.forecast.forecast import Forecast
from ullage.operate.serve.slo import Slo
from ullage.operate.serve.tiers import SHARES, Tiers
from ullage.operate.serve.traffic import Traffic
from ullage.verbs.text.time.numbers import format_seconds

View = tuple[Forecast, Traffic, Slo | None, Tiers | None]
_POINTS: Final = (50, 90, 99)


def forecast_line(view: View) -> str:
    """The result, in one line."""
    forecast, traffic, slo, _ = view
    line = (
        f"{forecast.num_preemptions:,} preemptions, {forecast.num_answered:,} of {len(traffic):,} "
        f"requests answered, cache {100 * forecast.simulated.usage_peak_frac:.0f} % full at most"
    )
    if slo is not None:
        line += f"; {100 * forecast.goodput(slo, traffic):.1f} % within the objective"
    return line


def forecast_blocks(view: View) -> Iterator[b.Block]:
    """The forecast's expectations of the cache and of requests."""
    forecast, _, _, tiers = view
    yield b.Headline.of(forecast_line(view), b.Tone.BAD if forecast.num_stuck else b.Tone.GOOD)
    gpu = getattr(forecast.plan.gpu, "slug", "")
    yield b.Note(f"{gpu}, forecast without the engine", b.Tone.FAINT, indent=2)
    yield b.SPACE
    yield _grid(forecast)
    if tiers is not None:
        yield b.Title("Prompts that share a prefix")
        yield tiers_grid(tiers)
    source = "the estimate's" if forecast.is_estimated else "as given"
    yield b.Note(
        f"cache bytes {source}; seconds of steps by closed forms",
        b.Tone.FAINT,
        indent=2,
        is_apart=True,
    )


def _grid(forecast: Forecast) -> b.Table:
    outcome, limits = forecast.simulated, forecast.limits
    rows: b.Rows = []
    used = f"{100 * outcome.usage_mean_frac:.0f} % in use on average"
    size = format_bytes(forecast.cache_bytes, 2)
    rows.append(["cache", size, f"{forecast.tokens:,} tokens, {used}"])
    preempted = int((outcome.num_preemptions > 0).sum())
    rows.append(["preemptions", f"{forecast.num_preemptions:,}", f"of {preempted:,} requests"])
    rows.append(["waiting", f"{outcome.waiting_peak:,}", "requests at most"])
    for name, values in (
        ("to the first token", outcome.first_token_s - outcome.arrival_s),
        ("to the last token", outcome.end_s - outcome.arrival_s),
    ):
        finite = values[np.isfinite(values)]
        if len(finite):
            p50, p90, p99 = (format_seconds(v) for v in np.percentile(finite, _POINTS))
            rows.append([name, p50, f"p50; {p90} p90, {p99} p99"])
    refused = int(outcome.is_refused.sum())
    if refused:
        rows.append(["refused", f"{refused:,}", f"beyond max_model_len {limits.max_model_len:,}"])
    if forecast.num_stuck:
        rows.append(["never answered", f"{forecast.num_stuck:,}", "the cache is too small"])
    return b.Table((b.LEFT, b.RIGHT, b.LEFT), rows)


def tiers_grid(tiers: Tiers) -> b.Table:
    """The sizes of a cache of prefixes, beside what running requests need."""
    rows: b.Rows = []
    ceiling = f"{100 * tiers.ceiling_frac:.0f} %"
    rows.append(["can be found", ceiling, "of the prompts' tokens, with a cache without end"])
    live = format_bytes(tiers.live_bytes, 1)
    rows.append(["at least", live, "of what came before and comes again, at one moment"])
    for share in SHARES:
        size = format_bytes(tiers.bytes_for(share), 1)
        rows.append([f"{100 * share:.0f} % of it", size, "of prefixes, evicted by last use (LRU)"])
    rate = format_bytes(round(tiers.read_bytes_per_s), 1)
    rows.append(["read", f"{rate}/s", "in the busiest minute, if all of it is found"])
    return b.Table((b.LEFT, b.RIGHT, b.LEFT), rows)
