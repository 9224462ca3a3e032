"""The document of a forecast of a server, schema "ullage.forecast/1"; and the tiers of a cache."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import numpy as np

from ullage.serve.forecast.forecast import Forecast
from ullage.serve.slo import Slo
from ullage.serve.tiers import Tiers
from ullage.serve.traffic import Traffic

FORECAST_SCHEMA: Final = "ullage.forecast/1"
SHARES: Final = (0.5, 0.9, 1.0)
"""Shares of the hits that a prefix cache can have."""


def forecast_document(
    forecast: Forecast, traffic: Traffic, slo: Slo | None, tiers: Tiers | None
) -> dict[str, Any]:
    """The document; sizes are bytes, times virtual seconds; null: there is none."""
    outcome, limits = forecast.simulated, forecast.limits
    times = {
        "ttft_s": outcome.first_token_s - outcome.arrival_s,
        "e2e_s": outcome.end_s - outcome.arrival_s,
    }
    return {
        "schema": FORECAST_SCHEMA,
        "gpu": getattr(forecast.plan.gpu, "slug", None),
        "traffic": {"source": traffic.source, "num_requests": len(traffic)},
        "slo": None if slo is None else asdict(slo),
        "cache_bytes": forecast.cache_bytes,
        "is_estimated": forecast.is_estimated,
        "tokens": forecast.tokens,
        "num_blocks": limits.num_blocks,
        "block_tokens": limits.block_tokens,
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "max_model_len": limits.max_model_len,
        "num_answered": forecast.num_answered,
        "num_refused": int(outcome.is_refused.sum()),
        "num_stuck": forecast.num_stuck,
        "num_preemptions": forecast.num_preemptions,
        "num_preempted": int((outcome.num_preemptions > 0).sum()),
        "usage_peak_frac": outcome.usage_peak_frac,
        "usage_mean_frac": outcome.usage_mean_frac,
        "waiting_peak": outcome.waiting_peak,
        "duration_s": outcome.duration_s,
        "goodput_frac": None if slo is None else forecast.goodput(slo, traffic),
        **{name: _percentiles(values) for name, values in times.items()},
        "tiers": None if tiers is None else tiers_document(tiers),
    }


def _percentiles(values: Any) -> dict[str, float] | None:  # noqa: ANN401 - a column
    finite = values[np.isfinite(values)]
    if not len(finite):
        return None
    points = (50, 90, 99)
    names = (f"p{point}" for point in points)
    return dict(zip(names, map(float, np.percentile(finite, points)), strict=True))


def tiers_document(tiers: Tiers) -> dict[str, Any]:
    """The sizes of a cache of prefixes."""
    return {
        "token_bytes": tiers.token_bytes,
        "ceiling_frac": tiers.ceiling_frac,
        "distinct_bytes": tiers.distinct_bytes,
        "reused_bytes": tiers.reused_bytes,
        "live_bytes": tiers.live_bytes,
        "read_bytes_per_s": tiers.read_bytes_per_s,
        "lru_bytes": {f"{share:g}": tiers.bytes_for(share) for share in SHARES},
    }
