"""The text report of a forecast of a server.

render_forecast((forecast, traffic, slo, tiers), width=80)      a text
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from rich.console import Console, RenderableType
from rich.text import Text

from ullage.report.document.forecast import SHARES
from ullage.report.terminal import make_grid, print_parts, render
from ullage.report.text.time.numbers import format_seconds
from ullage.serve.forecast.forecast import Forecast
from ullage.serve.slo import Slo
from ullage.serve.tiers import Tiers
from ullage.serve.traffic import Traffic
from ullage.units import format_bytes

View = tuple[Forecast, Traffic, Slo | None, Tiers | None]
_POINTS: Final = (50, 90, 99)


def render_forecast(view: View, width: int = 80) -> str:
    """The report as a text without colour, `width` columns wide."""
    return render(lambda console: print_forecast(view, console), width)


def print_forecast(view: View, console: Console) -> None:
    """Prints the report."""
    print_parts(_parts(*view), console)


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


def _parts(
    forecast: Forecast, traffic: Traffic, slo: Slo | None, tiers: Tiers | None
) -> Iterator[RenderableType]:
    style = "bold red" if forecast.num_stuck else "bold green"
    yield Text(forecast_line((forecast, traffic, slo, tiers)), style=style)
    gpu = getattr(forecast.plan.gpu, "slug", "")
    yield Text(f"  {gpu}, forecast without the engine", style="dim")
    yield Text()
    yield _grid(forecast)
    if tiers is not None:
        yield Text("\nPrompts that share a prefix")
        yield tiers_grid(tiers)
    source = "the estimate's" if forecast.is_estimated else "as given"
    yield Text(f"\n  cache bytes {source}; seconds of steps by closed forms", style="dim")


def _grid(forecast: Forecast) -> RenderableType:
    outcome, limits = forecast.simulated, forecast.limits
    grid = make_grid("left", "right", "left")
    grid.add_row(
        "  cache", format_bytes(forecast.cache_bytes, 2),
        f"{forecast.tokens:,} tokens, {100 * outcome.usage_mean_frac:.0f} % in use on average",
    )  # fmt: skip
    preempted = int((outcome.num_preemptions > 0).sum())
    grid.add_row("  preemptions", f"{forecast.num_preemptions:,}", f"of {preempted:,} requests")
    grid.add_row("  waiting", f"{outcome.waiting_peak:,}", "requests at most")
    for name, values in (
        ("  to the first token", outcome.first_token_s - outcome.arrival_s),
        ("  to the last token", outcome.end_s - outcome.arrival_s),
    ):
        finite = values[np.isfinite(values)]
        if len(finite):
            p50, p90, p99 = (format_seconds(v) for v in np.percentile(finite, _POINTS))
            grid.add_row(name, p50, f"p50; {p90} p90, {p99} p99")
    refused = int(outcome.is_refused.sum())
    if refused:
        grid.add_row("  refused", f"{refused:,}", f"beyond max_model_len {limits.max_model_len:,}")
    if forecast.num_stuck:
        grid.add_row("  never answered", f"{forecast.num_stuck:,}", "the cache is too small")
    return grid


def tiers_grid(tiers: Tiers) -> RenderableType:
    """The sizes of a cache of prefixes, beside what running requests need."""
    grid = make_grid("left", "right", "left")
    ceiling = f"{100 * tiers.ceiling_frac:.0f} %"
    grid.add_row("  can be found", ceiling, "of the prompts' tokens, with a cache without end")
    live = format_bytes(tiers.live_bytes, 1)
    grid.add_row("  at least", live, "of what came before and comes again, at one moment")
    for share in SHARES:
        size = format_bytes(tiers.bytes_for(share), 1)
        grid.add_row(f"  {100 * share:.0f} % of it", size, "of prefixes, evicted by last use (LRU)")
    rate = format_bytes(round(tiers.read_bytes_per_s), 1)
    grid.add_row("  read", f"{rate}/s", "in the busiest minute, if all of it is found")
    return grid
