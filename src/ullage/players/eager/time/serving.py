"""How long a server needs for a prompt, and for one token of each request.

time = time_serving(config, ServingPlan(gpu=find_gpu("h100-80gb"), context=8192, users=16))
time.prefill.s, time.decode.s        # time to first token without a queue, time per output token

The kernels are those of vLLM: products of each layer, attention over the cache, norms and
activations fused with what is beside them, and with tensor parallelism two sums over the ranks in
each layer. One follows the other; a CUDA graph spares the host.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Final

from ullage.clock.costs.traffic import Traffic, moved
from ullage.clock.duration import Duration
from ullage.clock.host import HOST_COSTS
from ullage.clock.interconnect import Interconnect
from ullage.clock.kernels import (
    attention_decode,
    attention_forward,
    collective,
    matrix_product,
    memory_bound,
    packed_product,
)
from ullage.clock.price import Dollars, price_steps
from ullage.clock.step_time import Interval
from ullage.clock.work import Attention, Collective, Kind, MatrixProduct
from ullage.facts.families.architecture import read_model
from ullage.facts.families.config import Config
from ullage.facts.families.layers import Attention as Layer
from ullage.facts.families.layers import Encoder, Index, Latent, Model, Part, Weight
from ullage.facts.families.layers import Layer as AnyLayer
from ullage.facts.gpus import Gpu
from ullage.ground.errors import SpecError
from ullage.ground.protocol.plain import As, figure
from ullage.players.eager.serving.model_weights import FORMATS, find_format
from ullage.players.eager.serving.serving_plan import ServingPlan

# The precision in which an engine multiplies weights of a format; else 16 bits.
_COMPUTED: Final = {"fp8": "float8_e4m3fn", "fp8-block": "float8_e4m3fn", "int8": "int8"}
_HIDDEN_BYTES: Final = 2
# vLLM's own all-reduce takes small buffers within a machine (custom_all_reduce.py, 8 MiB).
_CUSTOM_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class ServingTime:
    """The times of a server.

    Attributes:
        prefill: seconds of a prompt alone: the time to the first token where nothing waits.
        decode: seconds of a step in which each of the requests gets one token.
        prompt: tokens of the prompt.
        users: requests in the step.
        context: tokens that each of them has.
        num_gpus: that share the model.
        gpu_hour: dollars for one GPU and one hour; None: no price is given.
        basis: what the times rest on.
    """

    prefill: Annotated[Interval, As("prefill_s")]
    decode: Annotated[Interval, As("decode_s")]
    prompt: Annotated[int, As("prompt_tokens")]
    users: Annotated[int, As("requests")]
    context: Annotated[int, As("context_tokens")]
    num_gpus: int
    gpu_hour: Annotated[float | None, As("gpu_hour_dollars")]
    basis: tuple[str, ...]

    @figure
    def tokens_per_s(self) -> Interval:
        """New tokens a second of all requests, while none is in its prompt."""
        return Interval(*(self.users / seconds for seconds in reversed(self.decode)))

    @figure
    def million_tokens(self) -> Annotated[Dollars | None, As("million_tokens_dollars")]:
        """Dollars for 1,000,000 new tokens, without their prompts; None: no price is given."""
        if self.gpu_hour is None:
            return None
        return price_steps(self.decode, self.users, self.gpu_hour * self.num_gpus, 1).million_tokens


def time_serving(
    config: Config,
    plan: ServingPlan,
    links: Interconnect | None = None,
    gpu_hour: float | None = None,
) -> ServingTime:
    """The times of a server.

    Counts: products, attention, norms, activations, the caches, sums over ranks, and the host's
    launches where there are no CUDA graphs.
    Ignores: scheduling and sampling on the CPU, waiting, speculation, adapters, prefix caching.
    Error: not measured against a server; of each kernel see docs/results/time.md.

    Raises:
        SpecError: there is no GPU with rates, or the weights' format is not known.
    """
    kernels = _kernels_of(config, plan, links or Interconnect())
    users = plan.users or 1
    prefill = kernels.step(plan.context, 1, plan.context)
    decode = kernels.step(users, users, plan.context)
    basis = dict.fromkeys([*_assumptions(plan, kernels.form), *prefill.basis, *decode.basis])
    return ServingTime(
        prefill.interval, decode.interval, plan.context, users, plan.context,
        plan.tensor_parallel, gpu_hour, tuple(basis),
    )  # fmt: skip


def step_interval(
    config: Config, plan: ServingPlan, tokens: int, requests: int, context: int
) -> Interval:
    """The time of one step, as of `time_serving`.

    Args:
        tokens: in the step.
        requests: in the step; as many as tokens where each gets one.
        context: tokens that each request has at its end.

    Raises:
        SpecError: as of `time_serving`.
    """
    return _kernels_of(config, plan, Interconnect()).step(tokens, requests, context).interval


def _kernels_of(config: Config, plan: ServingPlan, links: Interconnect) -> _Kernels:
    if not isinstance(plan.gpu, Gpu):
        raise SpecError("time: on which GPU? name one of `ullage gpus` that has rates")
    model = read_model(config)
    model.check_tensor_parallel(plan.tensor_parallel)
    form = find_format(config) if plan.weights == "auto" else plan.weights
    if form not in FORMATS:
        raise SpecError(f"weights={form!r} is not a format; expected one of {', '.join(FORMATS)}")
    return _Kernels(plan.gpu, model, form, plan, links)


def expert_seconds(gpu: Gpu, model: Model, form: str, ranks: int, tokens: int) -> float:
    """The likely time of the experts' products in a step, of all layers on one rank.

    Counts: the weights of the experts that so many tokens choose, each as likely, and the products.
    Ignores: the router, the tokens' way to their experts and back.
    Source: as of a server's other products; layers of experts in docs/results/time.md.

    Args:
        form: of the experts' weights, of FORMATS.
        ranks: that share the experts, or each of them.
    """
    plan = ServingPlan(gpu=gpu, tensor_parallel=ranks)
    kernels = _Kernels(gpu, model, form, plan, Interconnect())
    return sum(count * time.s for count, time in kernels.experts(tokens))


def _assumptions(plan: ServingPlan, form: str) -> Iterator[str]:
    yield "scheduling and sampling on the CPU, and waiting, are not counted"
    if plan.engine != "vllm":
        yield "the kernels are taken to be vLLM's"
    if form not in _COMPUTED and FORMATS[form].bits < 16:
        yield f"weights in {form} are read unchanged, and multiplied in 16 bits"


@dataclass(frozen=True, slots=True)
class _Sum:
    interval: Interval
    basis: tuple[str, ...]


class _Kernels:
    """The kernels of a step on one rank."""

    def __init__(
        self, gpu: Gpu, model: Model, form: str, plan: ServingPlan, links: Interconnect
    ) -> None:
        self._gpu, self._model, self.form = gpu, model, form
        self._plan, self._links = plan, links
        self._ranks = plan.tensor_parallel

    def step(self, tokens: int, requests: int, context: int) -> _Sum:
        """A step of this many tokens of this many requests.

        Args:
            context: tokens that each request has at its end.
        """
        rows = [
            *self._products(tokens, requests),
            *self.experts(tokens),
            *self._attention(tokens, requests, context),
            *self._rest(tokens),
            *self._sums(tokens),
        ]
        ends = [
            sum(getattr(time, name) * count for count, time in rows)
            for name in ("low_s", "s", "high_s")
        ]
        launches = sum(count for count, _ in rows)
        if self._plan.has_graphs and tokens == requests:
            host_s = [costs.graph_s for costs in HOST_COSTS]
        else:
            host_s = [costs.launch_s * launches for costs in HOST_COSTS]
        interval = Interval(*(max(pair) for pair in zip(ends, host_s, strict=True)))
        seconds: dict[str, float] = {}
        for count, time in rows:
            seconds[time.basis] = seconds.get(time.basis, 0.0) + time.s * count
        most = sorted(seconds, key=lambda basis: -seconds[basis])
        return _Sum(interval, tuple(most[:5]))

    def _products(self, tokens: int, requests: int) -> Iterator[tuple[float, Duration]]:
        """Each matrix once; those of a layer with the same input and output are one."""
        has_head = any(weight.part is Part.HEAD for weight in self._model.weights)
        num_layers = max(1, len(self._model.layers))
        for weight in self._model.weights:
            is_head = weight.part is Part.HEAD or (weight.part is Part.EMBEDDING and not has_head)
            if weight.part is Part.EXPERTS and weight.is_linear:
                continue
            if is_head and weight.into > 1:
                out = math.ceil(weight.out / self._ranks)
                yield 1, self._product(requests, out, weight.into, is_packed=False)
            elif weight.is_linear and weight.into > 1:
                together = weight.count // num_layers if weight.part is Part.MLP else 1
                together = max(1, together)
                out, into = self._cut(weight)
                yield (
                    weight.count / together,
                    self._product(tokens, out * together, into, is_packed=True),
                )

    def experts(self, tokens: int) -> Iterator[tuple[float, Duration]]:
        """The products of the experts that are chosen, each as often: balanced, assumed."""
        for weight in self._model.weights:
            if weight.part is Part.EXPERTS and weight.is_linear:
                yield self._experts(weight, tokens)

    def _experts(self, weight: Weight, tokens: int) -> tuple[float, Duration]:
        layers = _num_expert_layers(self._model)
        experts = _num_experts(self._model)
        kinds = weight.count / (layers * experts)
        chosen = self._model.top_experts or 1
        active = max(1, round(experts * (1 - (1 - chosen / experts) ** tokens)))
        rows = max(1, round(tokens * chosen / active))
        out, into = self._cut(weight)
        merged = max(1, round(kinds))
        time = self._product(rows, out * merged, into, is_packed=True, experts=active)
        return layers, replace(time, basis=f"{time.basis}; experts chosen equally often")

    def _cut(self, weight: Weight) -> tuple[int, int]:
        """A rank's share of a matrix: of rows, or where it leads back to hidden states, columns."""
        ranks = min(self._ranks, weight.most_shards or self._ranks)
        if weight.out == self._model.hidden and weight.part is not Part.ATTENTION:
            return weight.out, math.ceil(weight.into / ranks)
        return math.ceil(weight.out / ranks), weight.into

    def _product(
        self, rows: int, out: int, into: int, *, is_packed: bool, experts: int = 0
    ) -> Duration:
        batch = max(1, experts)
        shape = MatrixProduct(rows, out, into, batch)
        form = FORMATS[self.form]
        if not is_packed or form.bits >= 16 or (form.is_experts_only and not experts):
            return matrix_product(self._gpu, shape, "bfloat16")
        # Experts in float8, too, are packed: its tables have the input's quantisation in them,
        # which experts share.
        precision = _COMPUTED.get(self.form, "bfloat16")
        if self.form in _COMPUTED and not experts:
            return matrix_product(self._gpu, shape, precision)
        return packed_product(self._gpu, shape, batch * form.matrix_size(out, into), precision)

    def _attention(
        self, tokens: int, requests: int, context: int
    ) -> Iterator[tuple[float, Duration]]:
        """Each layer's attention; other layers than attention by the bytes of what they keep."""
        counts: dict[AnyLayer, int] = {}
        for layer in self._model.layers:
            counts[layer] = counts.get(layer, 0) + 1
        length = max(1, tokens // requests)
        for layer, count in counts.items():
            if isinstance(layer, Layer | Encoder):
                yield count, self._attend(layer, length, requests, context)
            elif isinstance(layer, Latent | Index):
                chosen = layer.chosen if isinstance(layer, Latent) else None
                visible = min(context, chosen or context)
                num_bytes = 1.0 * requests * visible * layer.width * _HIDDEN_BYTES
                ops = 4.0 * tokens * layer.heads / self._ranks * layer.width * visible / 2
                time = memory_bound(self._gpu, num_bytes)
                shape = MatrixProduct(4096, 4096, 4096)
                rate = shape.ops / matrix_product(self._gpu, shape, "bfloat16").s
                seconds = max(time.s, ops / rate)
                basis = "latent attention by its bytes and the rate of a large product"
                yield count, Duration(time.low_s, seconds, 3 * seconds, basis)
            else:
                num_bytes = 4.0 * tokens * self._model.hidden * _HIDDEN_BYTES
                time = moved(self._gpu, Traffic.of(num_bytes, 0.5, 4.0), "a recurrent layer")
                yield count, time

    def _attend(self, layer: Layer | Encoder, length: int, requests: int, context: int) -> Duration:
        heads = max(1, layer.heads // self._ranks)
        kv_heads = heads
        visible = context
        if isinstance(layer, Layer):
            kv_heads = max(1, layer.kv_heads // self._ranks)
            visible = min(context, layer.window or context, layer.chunk or context)
        if length == 1:
            work = Attention(requests, heads, kv_heads, layer.head_dim, 1, visible)
            precision = "float8_e4m3fn" if self._plan.kv.startswith("fp8") else "bfloat16"
            return attention_decode(self._gpu, work, precision)
        work = Attention(requests, heads, kv_heads, layer.head_dim, length, length)
        time = attention_forward(self._gpu, work, "bfloat16")
        return time if visible >= length else time.scaled(visible / length)

    def _rest(self, tokens: int) -> Iterator[tuple[float, Duration]]:
        """In each layer two norms with the residual, the rotation, the cache, the activation."""
        model = self._model
        num_layers = len(model.layers)
        hidden = tokens * model.hidden * _HIDDEN_BYTES
        norm = moved(self._gpu, Traffic.of(4.0 * hidden), "norms with the residual")
        wide = moved(
            self._gpu, Traffic.of(1.5 * tokens * model.widest * _HIDDEN_BYTES / self._ranks),
            "activations",
        )  # fmt: skip
        cache = moved(
            self._gpu, Traffic.of(2.0 * hidden / self._ranks, 0.5, 2.0), "rotation, cache"
        )
        yield 2 * num_layers, norm
        yield num_layers, wide
        yield 2 * num_layers, cache

    def _sums(self, tokens: int) -> Iterator[tuple[float, Duration]]:
        """After attention and after the MLP the ranks sum."""
        if self._ranks < 2:
            return
        num_bytes = tokens * self._model.hidden * _HIDDEN_BYTES
        rate = self._links.within_bytes_per_s
        is_small = num_bytes <= _CUSTOM_BYTES and self._ranks <= self._links.gpus_per_machine
        kind = Kind.CUSTOM_ALL_REDUCE if is_small else Kind.ALL_REDUCE
        time = collective(self._gpu, Collective(kind, num_bytes, self._ranks), rate)
        yield 2 * len(self._model.layers), time


def _num_experts(model: Model) -> int:
    """Experts of a layer: the rows of its router."""
    routers = [weight.out for weight in model.weights if weight.part is Part.ROUTER]
    return max(routers, default=1)


def _num_expert_layers(model: Model) -> int:
    """Layers with experts: as many as routers of that size."""
    most = _num_experts(model)
    routers = [
        weight.count
        for weight in model.weights
        if weight.part is Part.ROUTER and weight.out == most and weight.into > 1
    ]
    return max(1, sum(routers))
