"""The outcome of the requests of a server, as columns; read from the engine's process.

outcome = read_outcome(document, traffic)
outcome.ttft_s, outcome.tpot_s, outcome.e2e_s       # NAN where there is none
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ullage.ground.protocol.plain import As, Mark, figure
from ullage.operate.serve.traffic import Traffic

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine as it started, by its own figures.

    Attributes:
        name, version: such as "vllm" and "0.32.0".
        weights_bytes, peak_activation_bytes: of the model, and of the profiled step beside it, with
            the engine's estimate of its CUDA graphs.
        kv_cache_bytes, num_blocks, block_tokens: of the cache.
        kv_cache_tokens, max_concurrency: what it prints as the size of the cache, and how many
            requests of max_model_len fit.
        device_used_bytes, device_bytes: of the whole device, once the engine is ready.
        utilization_frac: the share of the device that it was given.
        max_model_len, max_num_seqs, max_num_batched_tokens: its limits.
        is_async, has_prefix_caching, has_graphs: what it has switched on.
        tensor_parallel: the GPUs that share a layer.
        ignored: words of its command line that are of its HTTP server.
        block_bytes: of a block in all layers; 0: not known.
        is_cache_given: whether the bytes of the cache were named, and not measured.
        graph_spread_bytes: of the CUDA graphs that were taken off the cache, what the phantom
            counts at most and a real GPU may not take.
        hidden: the elements of a token between layers.
    """

    name: str
    version: str
    weights_bytes: int
    peak_activation_bytes: int
    kv_cache_bytes: int
    num_blocks: int
    block_tokens: int
    kv_cache_tokens: int
    max_concurrency: float
    device_used_bytes: int
    device_bytes: int
    utilization_frac: float
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    is_async: bool
    has_prefix_caching: bool
    has_graphs: bool
    tensor_parallel: int
    ignored: tuple[str, ...]
    block_bytes: int = 0
    is_cache_given: bool = False
    graph_spread_bytes: int = 0
    hidden: int = 0


@dataclass(frozen=True, slots=True)
class Levels:
    """Queue and cache over time: at `time_s` this many requests run and wait, and such a share of
    the cache's blocks is in use.
    """

    time_s: Floats
    running: Counts
    waiting: Counts
    usage_frac: Floats


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of the requests.

    Attributes:
        engine: the engine.
        traffic: the requests; all columns below are in their order.
        arrival_s: in a closed loop, when they were sent.
        begin_s, first_token_s, end_s: when each was in a step for the first time, had its first
            token and its last; NAN: never.
        output_tokens: tokens that each got.
        cached_tokens: tokens of its prompt that were in the prefix cache.
        num_preemptions: how often it lost its blocks and was computed again.
        usage_frac: the cache's occupancy when it arrived; NAN: it was not sent.
        rejected: requests that the engine refused, and why.
        levels: over time.
        usage_peak_frac, usage_mean_frac: the cache's occupancy, of all steps and over time.
        duration_s: until the last answer.
        num_steps: of the engine.
        device_s, prompt_s, attention_s: seconds of all steps, of those with tokens of prompts, and
            of attention.
        host_s: seconds of the host for all steps, as it was assumed.
        stored_bytes, loaded_bytes: of the cache, copied to the host and back.
        step_times: the measured steps: by "decode" and "prefill", the "tokens" and "seconds".
        left_out: layers whose attention has no time.
        experts_chosen: experts that a token chooses; 0: the model has none.
        real_s: what the phases took on this machine; not a result, and different in each run.
    """

    engine: Engine
    traffic: Traffic
    arrival_s: Annotated[Floats, Mark.NO_KEY]
    begin_s: Annotated[Floats, Mark.NO_KEY]
    first_token_s: Annotated[Floats, Mark.NO_KEY]
    end_s: Annotated[Floats, Mark.NO_KEY]
    output_tokens: Annotated[Counts, Mark.NO_KEY]
    cached_tokens: Annotated[Counts, Mark.NO_KEY]
    num_preemptions: Annotated[Counts, Mark.NO_KEY]
    usage_frac: Annotated[Floats, Mark.NO_KEY]
    rejected: Annotated[Mapping[int, str], Mark.NO_KEY]
    levels: Levels
    usage_peak_frac: float
    usage_mean_frac: float
    duration_s: float
    num_steps: Annotated[int, Mark.NO_KEY]
    device_s: Annotated[float, Mark.NO_KEY]
    prompt_s: Annotated[float, Mark.NO_KEY]
    attention_s: Annotated[float, Mark.NO_KEY]
    host_s: Annotated[float, Mark.NO_KEY]
    step_times: Mapping[str, Any]
    left_out: Annotated[tuple[str, ...], As("attention_left_out")]
    experts_chosen: int
    real_s: Mapping[str, float]
    stored_bytes: int = 0
    loaded_bytes: int = 0

    @figure
    def counts(self) -> Annotated[Mapping[str, Any], Mark.FLAT]:
        """The requests with all their tokens, and those that the engine refused."""
        refusals = list(self.rejected.items())[:20]
        return {
            "num_answered": self.is_answered.sum(),
            "num_rejected": len(self.rejected),
            "rejected": [{"request": number, "why": why} for number, why in refusals],
        }

    @property
    def ttft_s(self) -> Floats:
        """From the arrival to the first token."""
        return self.first_token_s - self.arrival_s

    @property
    def e2e_s(self) -> Floats:
        """From the arrival to the last token."""
        return self.end_s - self.arrival_s

    @property
    def queue_s(self) -> Floats:
        """From the arrival to the first step."""
        return self.begin_s - self.arrival_s

    @property
    def tpot_s(self) -> Floats:
        """Between two tokens after the first, on average; NAN where there is one token."""
        gaps = (self.output_tokens - 1).astype(np.float64)
        return (self.end_s - self.first_token_s) / np.where(gaps > 0, gaps, np.nan)

    @property
    def is_answered(self) -> npt.NDArray[np.bool_]:
        """True where requests have all their tokens."""
        return np.isfinite(self.end_s)

    @figure
    def num_stuck(self) -> int:
        """Requests that were accepted and never end: the cache is too small for them."""
        return len(self.traffic) - int(self.is_answered.sum()) - len(self.rejected)


def read_engine(fields: Mapping[str, Any]) -> Engine:
    """Reads the engine's own figures."""
    return Engine(**{**fields, "ignored": tuple(fields["ignored"])})


def read_outcome(document: Mapping[str, Any], traffic: Traffic) -> Outcome:
    """Reads what ullage.operate.serve.vllm.entrance writes."""
    requests, levels = document["requests"], document["levels"]
    return Outcome(
        engine=read_engine(document["engine"]),
        traffic=traffic,
        arrival_s=_floats(requests["arrival_s"]),
        begin_s=_floats(requests["begin_s"]),
        first_token_s=_floats(requests["first_token_s"]),
        end_s=_floats(requests["end_s"]),
        output_tokens=_counts(requests["output_tokens"]),
        cached_tokens=_counts(requests["cached_tokens"]),
        num_preemptions=_counts(requests["num_preemptions"]),
        usage_frac=_floats(requests["usage_frac"]),
        rejected={int(index): why for index, why in document["rejected"].items()},
        levels=Levels(
            _floats(levels["time_s"]), _counts(levels["running"]), _counts(levels["waiting"]),
            _floats(levels["usage_frac"]),
        ),
        usage_peak_frac=document["usage_peak_frac"],
        usage_mean_frac=document["usage_mean_frac"],
        duration_s=document["end_s"],
        num_steps=document["num_steps"],
        device_s=document["device_s"],
        prompt_s=document["prompt_s"],
        attention_s=document["attention_s"],
        host_s=document["host_s"],
        step_times=document["step_times"],
        left_out=tuple(document["attention_left_out"]),
        experts_chosen=document.get("experts_chosen", 0),
        real_s=document["real_s"],
        stored_bytes=document.get("stored_bytes", 0),
        loaded_bytes=document.get("loaded_bytes", 0),
    )  # fmt: skip


def _floats(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _counts(values: Sequence[int]) -> Counts:
    return np.array(values, dtype=np.int64)
