"""Forecasts a server's preemptions and latencies for some traffic: no engine, some seconds.

    forecast = forecast_traffic(config, plan, traffic, cache_bytes=None)
    forecast.num_preemptions, forecast.simulated.usage_peak_frac

The cache is laid out as vLLM lays it out; its bytes are given (as a start printed them), or those
that `ullage capacity` has likely. Steps take the seconds of the closed forms. So whatever
the forecast has wrong is there too: docs/results/estimates.md holds it against the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated

import numpy as np

from ullage.facts.families.architecture import read_model
from ullage.facts.families.config import Config
from ullage.facts.families.layers import Attention, Index, Latent
from ullage.facts.gpus import Gpu
from ullage.ground.errors import SpecError
from ullage.ground.protocol.plain import As, Mark, Only, figure
from ullage.operate.serve.forecast.simulation import Limits, Seconds, Simulated, simulate
from ullage.operate.serve.forecast.step_seconds import StepSeconds
from ullage.operate.serve.slo import Slo
from ullage.operate.serve.traffic import Traffic
from ullage.players.eager.serving.engines import vllm
from ullage.players.eager.serving.serving import estimate_serving, layout_settings
from ullage.players.eager.serving.serving_plan import ServingPlan
from ullage.players.eager.serving.vllm_memory import batch_defaults


@dataclass(frozen=True, slots=True)
class Forecast:
    """A forecast.

    Attributes:
        plan: of the server, with the sizes of a step.
        limits: what the simulation was given.
        cache_bytes, tokens: of the cache, as the engine would print them.
        is_estimated: the bytes are the estimate's, not a start's.
        simulated: what became of the requests.
    """

    plan: Annotated[ServingPlan, Only("gpu.slug"), As("gpu")]
    limits: Annotated[Limits, Mark.FLAT]
    cache_bytes: int
    tokens: int
    is_estimated: bool
    simulated: Annotated[Simulated, Mark.FLAT]

    @figure
    def num_preemptions(self) -> int:
        """The number of preemptions, in which requests lose their blocks."""
        return int(self.simulated.num_preemptions.sum())

    @figure
    def num_answered(self) -> int:
        """Requests with their last token."""
        return int(np.isfinite(self.simulated.end_s).sum())

    @figure
    def num_stuck(self) -> int:
        """Requests that are accepted and never end."""
        outcome = self.simulated
        return len(outcome.end_s) - self.num_answered - int(outcome.is_refused.sum())

    def goodput(self, slo: Slo, traffic: Traffic) -> float:
        """The share of all requests that meet the objective."""
        outcome = self.simulated
        gaps = (traffic.output_tokens - 1).astype(np.float64)
        tpot_s = (outcome.end_s - outcome.first_token_s) / np.where(gaps > 0, gaps, np.nan)
        ttft_s = outcome.first_token_s - outcome.arrival_s
        is_met = slo.holds(ttft_s, tpot_s, outcome.end_s - outcome.arrival_s)
        return float(is_met.mean()) if len(is_met) else 1.0


def forecast_traffic(
    config: Config,
    plan: ServingPlan,
    traffic: Traffic,
    cache_bytes: int | None = None,
    seconds: Seconds | None = None,
) -> Forecast:
    """Forecasts what becomes of the traffic.

    Args:
        config: of the model.
        plan: of the server; its GPU must have rates.
        traffic: the requests.
        cache_bytes: of the cache on each GPU; None: the estimate's.
        seconds: of a step; None: the closed forms.

    Raises:
        SpecError: the plan has no GPU with rates, the model is not known, or nothing is left for
            the cache.
    """
    if not isinstance(plan.gpu, Gpu):
        raise SpecError("forecast: on which GPU? name one of `ullage gpus` that has rates")
    gpu = plan.gpu
    plan = resolve_plan(plan, gpu)
    likely = estimate_serving(config, plan).kv_bytes[1] if cache_bytes is None else cache_bytes
    limits = limits_of(config, plan, likely)
    if limits.num_blocks < 2:
        raise SpecError(
            f"nothing is left for the cache on {gpu.slug} ({likely} bytes); take a larger "
            "GPU, or more of it (gpu_memory_utilization)"
        )
    simulated = simulate(traffic, limits, seconds or StepSeconds(config, plan, gpu))
    tokens = _pool(config, plan).tokens(likely)
    return Forecast(plan, limits, likely, tokens, cache_bytes is None, simulated)


def resolve_plan(plan: ServingPlan, gpu: Gpu) -> ServingPlan:
    """The plan with vLLM's defaults for the sizes of a step."""
    tokens, seqs = batch_defaults(gpu)
    return replace(
        plan, max_batched_tokens=plan.max_batched_tokens or tokens, max_seqs=plan.max_seqs or seqs
    )


def _pool(config: Config, plan: ServingPlan) -> vllm.Pool:
    model = read_model(config)
    settings = layout_settings(model, plan, plan.max_batched_tokens or 2048)
    return vllm.lay_out(model.layers, settings)


def limits_of(config: Config, plan: ServingPlan, cache_bytes: int) -> Limits:
    """The server as the simulation takes it.

    Layers that see all alike take a block for each of its tokens; of others the blocks of a context
    are those that vLLM charges it.
    """
    pool = _pool(config, plan)
    layers = read_model(config).layers
    is_plain = len(pool.groups) == 1 and all(
        isinstance(layer, Latent | Index)
        or (isinstance(layer, Attention) and not _is_bounded(layer))
        for layer in layers
    )

    @cache
    def blocks_of(whole: int) -> int:
        length = max(1, whole * pool.block_size)
        settings = replace(pool.settings, max_model_len=length)
        return vllm.lay_out(layers, settings).request_blocks

    return Limits(
        num_blocks=pool.num_blocks(max(0, cache_bytes)),
        block_tokens=pool.block_size,
        max_num_seqs=plan.max_seqs or 256,
        max_num_batched_tokens=plan.max_batched_tokens or 2048,
        max_model_len=plan.context,
        has_prefix_caching=plan.has_prefix_caching,
        is_async=plan.is_async,
        blocks_of=None if is_plain else blocks_of,
    )


def _is_bounded(layer: Attention) -> bool:
    return bool(layer.window or layer.chunk)
