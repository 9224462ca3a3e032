"""The changes of a server's command that give its cache more tokens, the best first.

for lever in find_levers(start, config):
    print(lever.change, lever.gain_tokens, lever.basis)

A gain is arithmetic on the log's own figures where these suffice. What a smaller step would take is
not a figure of the log; with the model's configuration it follows from the closed forms of
`ullage capacity`, and never exceeds what the log says that the step takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from ullage.explain.servers.start import ServerStart
from ullage.facts.families.config import Config
from ullage.facts.gpus.catalog import load_catalog
from ullage.facts.gpus.gpu import Gpu
from ullage.ground.errors import SpecError
from ullage.players.eager.serving.serving import estimate_serving
from ullage.players.eager.serving.serving_plan import ServingPlan
from ullage.players.eager.serving.vllm_memory import batch_defaults

MEASURED: Final = "the log's figures"
ESTIMATED: Final = "closed forms of the model"
_SHARE: Final = 0.95
_FEWER: Final = 4
_LEAST_GAIN: Final = 0.002
_SAME_MEMORY: Final = 0.03
_16_BITS: Final = ("auto", "bfloat16", "float16", "torch.bfloat16", "torch.float16", "None")


@dataclass(frozen=True, slots=True)
class Lever:
    """A change, and what it does to the cache of one GPU.

    Attributes:
        change: the option, as in the command line.
        gain_bytes: more bytes for the cache.
        gain_tokens: more tokens that it holds.
        what: where they come from, or what it costs.
        basis: what the gain was computed from.
    """

    change: str
    gain_bytes: int
    gain_tokens: int
    what: str
    basis: str


def find_levers(start: ServerStart, config: Config | None = None) -> tuple[Lever, ...]:
    """The changes that give more tokens, the most tokens first; none where the log does not say
    what a token takes.

    Args:
        config: of the model; None: what follows from the log alone.
    """
    cost = start.token_bytes
    if cost is None or start.tokens is None or start.is_told_blocks:
        return ()
    levers = [*_of_the_log(start, cost)]
    if start.engine == "vllm":
        levers += _of_the_step(start, cost, config)
    levers = [lever for lever in levers if lever.gain_tokens >= _LEAST_GAIN * start.tokens]
    return tuple(sorted(levers, key=lambda lever: -lever.gain_tokens))


def _of_the_log(start: ServerStart, cost: float) -> Iterator[Lever]:
    is_vllm = start.engine == "vllm"
    option = "--gpu-memory-utilization" if is_vllm else "--mem-fraction-static"
    total, share = start.total_bytes, start.share
    if total and share and share < _SHARE and not start.cached_from_bytes:
        gain = round((_SHARE - share) * total)
        left = start.free_at_end_bytes
        if left is None or left > gain:
            yield _lever(f"{option} {_SHARE:g}", gain, cost, "less room beside the share")
    if start.spare_bytes is not None and start.cache_bytes is not None:
        gain = start.spare_bytes - start.cache_bytes
        what = "all that was free, less 150 MiB, by the engine's own count"
        yield _lever(f"--kv-cache-memory-bytes {start.spare_bytes}", gain, cost, what)
    if _is_16_bits(start, "kv_cache_dtype"):
        dtype = "fp8" if is_vllm else "fp8_e4m3"
        change, tokens = f"--kv-cache-dtype {dtype}", start.tokens or 0
        what = "half of the bytes for a token of attention"
        yield Lever(change, start.cache_bytes or 0, tokens, what, MEASURED)
    if start.graph_estimate_bytes:
        what = "no CUDA graphs: slower tokens"
        yield _lever("--enforce-eager", start.graph_estimate_bytes, cost, what)
    if start.weights_bytes:
        yield from _of_the_weights(start, start.weights_bytes, cost)


def _of_the_weights(start: ServerStart, weights_bytes: int, cost: float) -> Iterator[Lever]:
    is_vllm = start.engine == "vllm"
    if _is_16_bits(start, "quantization") and _is_16_bits(start, "dtype"):
        what = "half of the weights' bytes, at most: embeddings stay in 16 bits"
        yield _lever("--quantization fp8", weights_bytes // 2, cost, what)
    ranks = start.options.get("tensor_parallel_size" if is_vllm else "tp_size", "1")
    if ranks.isdecimal() and start.cache_bytes:
        twice = 2 * int(ranks)
        gain = weights_bytes // 2
        tokens = round((start.cache_bytes + gain) / (cost / 2)) - (start.tokens or 0)
        option = "--tensor-parallel-size" if is_vllm else "--tp-size"
        what = f"{twice} GPUs: half of the weights and of each token on each"
        yield Lever(f"{option} {twice}", gain, tokens, what, MEASURED)


def _lever(change: str, gain: int, cost: float, what: str, basis: str = MEASURED) -> Lever:
    return Lever(change, gain, round(gain / cost), what, basis)


def _is_16_bits(start: ServerStart, option: str) -> bool:
    return start.options.get(option, "auto") in _16_BITS


def _of_the_step(start: ServerStart, cost: float, config: Config | None) -> Iterator[Lever]:
    if not start.activation_bytes or start.cached_from_bytes:
        return
    plan = None if config is None else _plan(start)
    if plan is None or config is None or plan.gpu is None:
        most = round(start.activation_bytes * (1 - 1 / _FEWER))
        change = f"--max-num-batched-tokens, a {_FEWER}th"
        yield _lever(change, most, cost, "at most: part may be the sampler's", MEASURED)
        return
    batched, seqs = batch_defaults(plan.gpu)
    tokens, requests = plan.max_batched_tokens or batched, plan.max_seqs or seqs
    changes: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("--max-num-batched-tokens", {"max_batched_tokens": tokens // _FEWER},
         "a smaller step: long prompts take more of them"),
        ("--max-num-seqs", {"max_seqs": requests // _FEWER}, "fewer requests at once"),
    )  # fmt: skip
    for option, fields, what in changes:
        (value,) = fields.values()
        gain = _estimated(config, plan, fields)
        if value and gain:
            gain = min(gain, start.activation_bytes + (start.graph_estimate_bytes or 0))
            yield _lever(f"{option} {value}", gain, cost, what, ESTIMATED)


def _estimated(config: Config, plan: ServingPlan, fields: dict[str, Any]) -> int:
    """The bytes that a change of the plan adds to the cache, by the closed forms."""
    try:
        now, then = (
            estimate_serving(config, each).kv_bytes[1] for each in (plan, replace(plan, **fields))
        )
    except SpecError:  # a model that the forms do not have
        return 0
    return max(0, then - now)


def _plan(start: ServerStart) -> ServingPlan | None:
    """The start as a plan, on the GPU of the catalogue that has as much memory."""
    total = start.total_bytes
    if total is None:
        return None
    gpus = [gpu for gpu in load_catalog() if isinstance(gpu, Gpu)]
    gpu = min(gpus, key=lambda gpu: abs(gpu.total_bytes - total))
    if abs(gpu.total_bytes - total) > _SAME_MEMORY * total:
        return None
    options = start.options
    sizes: dict[str, Any] = {
        field: int(options[option])
        for field, option in (
            ("max_batched_tokens", "max_num_batched_tokens"), ("max_seqs", "max_num_seqs"),
            ("tensor_parallel", "tensor_parallel_size"),
        )
        if options.get(option, "").isdecimal()
    }  # fmt: skip
    try:
        return ServingPlan(
            gpu=gpu, context=start.max_model_len or 8192, utilization=start.share,
            capacity_bytes=start.total_bytes, engine_version=start.version, **sizes,
            has_graphs=options.get("enforce_eager", "False") != "True",
        )  # fmt: skip
    except SpecError:
        return None
