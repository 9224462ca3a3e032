"""Forecasts what a server's cache does to some traffic, without the engine: `ullage serve
--forecast` and `ullage.forecast_serving`.

    forecast = ullage.forecast_serving("llama-3.1-8b", "azure-conv:rate=20", gpu="l40s")
    forecast.num_preemptions, forecast.tiers.live_bytes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from ullage.api.serving import GPU, traffic_of
from ullage.protocol.plain import Mark, document_of, figure

if TYPE_CHECKING:
    from ullage.models.config import Config
    from ullage.protocol.options.serve import ServeOptions
    from ullage.serve.forecast.forecast import Forecast
    from ullage.serve.slo import Slo
    from ullage.serve.tiers import Tiers
    from ullage.serve.traffic import Traffic


@dataclass(frozen=True, slots=True)
class ForecastServing:
    """A finished forecast.

    Attributes:
        forecast: what becomes of the requests.
        traffic: they.
        slo: the objective, if there is one.
        tiers: how large a cache of prefixes must be; None: no prompts are alike.
    """

    SCHEMA: ClassVar[str] = "ullage.forecast/1"

    forecast: Annotated[Forecast, Mark.FLAT]
    traffic: Traffic
    slo: Slo | None
    tiers: Tiers | None

    @figure
    def goodput_frac(self) -> float | None:
        """The share of all requests that meet the objective; None: there is none."""
        return None if self.slo is None else self.forecast.goodput(self.slo, self.traffic)

    @property
    def num_preemptions(self) -> int:
        """How often requests lose their blocks."""
        return self.forecast.num_preemptions

    @property
    def exit_code(self) -> int:
        """1 where requests can never be answered; else 0."""
        return 1 if self.forecast.num_stuck else 0

    @property
    def document(self) -> dict[str, Any]:
        """The document, schema "ullage.forecast/1"."""
        return document_of(self)

    def text(self, width: int = 80) -> str:
        """The report for people, without colour."""
        from ullage.answers.text import render
        from ullage.report.text.forecast import forecast_blocks

        view = (self.forecast, self.traffic, self.slo, self.tiers)
        return render(forecast_blocks(view), width)


def forecast_serving(
    model: str | Config,
    traffic: str,
    *,
    gpu: str,
    flags: Sequence[str] = (),
    cache: str | int | None = None,
    slo: str | None = None,
) -> ForecastServing:
    """Forecasts preemptions, the use of the cache and latencies of some traffic; some seconds.

    Args:
        model: as for `ullage.estimate_serving`.
        traffic: as for `ullage.serve_traffic`.
        gpu: of the catalogue.
        flags: of `vllm serve`, such as ("--max-num-seqs", "64").
        cache: bytes of the cache on each GPU, as a start printed them; None: the blocks that the
            flags give (--num-gpu-blocks-override), or the estimate's.
        slo: such as "ttft=1s,tpot=50ms".

    Raises:
        SpecError: one of them is not possible, or nothing is left for the cache.
    """
    from ullage.errors import SpecError
    from ullage.estimate.serving.kv_cache import token_bytes
    from ullage.estimate.serving.serving_plan import ServingPlan
    from ullage.gpus import find_gpu
    from ullage.models.architecture import read_model
    from ullage.models.config import Config
    from ullage.models.find import find_config
    from ullage.serve.forecast.forecast import bytes_of_blocks, forecast_traffic
    from ullage.serve.search.candidate import given_blocks, given_flags
    from ullage.serve.slo import parse_slo
    from ullage.serve.tiers import size_tiers
    from ullage.serve.traffic import load_traffic
    from ullage.units import parse_bytes

    config = model if isinstance(model, Config) else find_config(model).config
    requests = load_traffic(traffic)
    if not len(requests):
        raise SpecError(f"traffic {traffic!r} has no requests")
    fields = dict(given_flags(flags).fields)
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    fields.setdefault("context", read_model(config).context or longest)
    plan = ServingPlan(gpu=find_gpu(gpu), **fields)  # type: ignore[arg-type]
    cache_bytes = None if cache is None else parse_bytes(cache)
    blocks = given_blocks(flags)
    if cache_bytes is None and blocks is not None:
        cache_bytes = bytes_of_blocks(config, plan, blocks)
    forecast = forecast_traffic(config, plan, requests, cache_bytes)
    each = sum(token_bytes(layer, plan.precision) for layer in read_model(config).layers)
    tiers = size_tiers(requests, each) if len(requests.block_hashes) else None
    return ForecastServing(forecast, requests, None if slo is None else parse_slo(slo), tiers)


def forecast_command(options: ServeOptions) -> ForecastServing:
    """`forecast_serving` of a command: `vllm serve MODEL ...`.

    Raises:
        SpecError: as of `forecast_serving`; the command is none of a server.
    """
    from ullage.serve.run import check_command

    return forecast_serving(
        check_command(options.program), traffic_of(options), gpu=options.gpu or GPU,
        flags=tuple(options.program[3:]), cache=options.cache, slo=options.slo,
    )  # fmt: skip
