"""How long the attention of a step takes on one rank: all layers, for the contexts of a step.

    attention = AttentionTimes(find_gpu("h100-80gb"), read_model(config))
    attention.decode_s(requests=64, context=1500)

A graph that is replayed, and the arguments of a kernel, do not say how long the contexts are; the
scheduler does. Priced by the tables of ullage.clock on a grid, and bilinear between its points,
because a server takes hundreds of thousands of steps.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from typing import Final

from ullage.clock.costs import cost_of
from ullage.clock.costs.kernel_names import Rule, rule_of
from ullage.clock.costs.traffic import start_s
from ullage.clock.given_work import GivenWork, KernelLaunch
from ullage.clock.kernels import attention_decode, attention_forward
from ullage.clock.work import Attention
from ullage.facts.families.layers import Attention as Layer
from ullage.facts.families.layers import Model
from ullage.facts.gpus import Gpu

_REQUESTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_TOKENS: Final = (1, *(16 << power for power in range(15)))
"""The lengths of contexts and prompts: 1, 16, 32, ... 262,144."""


class AttentionTimes:
    """The seconds of attention.

    Counts: keys and values of each layer, within its window or chunk; a cache in 8 bits where one
    token of each request reads it.
    Ignores: latent and recurrent layers; `left_out` names them. Prompts are computed in 16 bits.

    Args:
        cache_dtype: as vLLM calls it; of a name that begins with fp8, the cache has 8 bits.
    """

    def __init__(self, gpu: Gpu, model: Model, ranks: int = 1, cache_dtype: str = "auto") -> None:
        self._gpu, self._ranks = gpu, ranks
        self._cached = "float8_e4m3fn" if cache_dtype.startswith("fp8") else "bfloat16"
        layers = Counter(layer for layer in model.layers if isinstance(layer, Layer))
        self._layers = tuple(layers.items())
        others = Counter(
            type(layer).__name__ for layer in model.layers if not isinstance(layer, Layer)
        )
        self.left_out = tuple(f"{number} layers: {name}" for name, number in others.items())
        self._launch_s = cache(lambda launch: cost_of(gpu, launch).duration.s)
        self._decode = cache(self._price_decode)
        self._prefill = cache(self._price_prefill)

    def without(self, seconds: float, works: Iterable[GivenWork]) -> float:
        """The seconds of a step, from those in which the clock priced its attention by launches: of
        each of these kernels a start is left. As measured where a layer has no time here.

        Args:
            works: what the device was given for the step.
        """
        if self.left_out:
            return seconds
        launches = [work for work in works if _is_attention(work)]
        taken_s = sum(self._launch_s(launch) for launch in launches)
        return max(0.0, seconds - max(0.0, taken_s - len(launches) * start_s(self._gpu)))

    def decode_s(self, requests: int, context: float) -> float:
        """Seconds where each of the requests gets one token, with this many tokens on average."""
        if requests < 1:
            return 0.0
        return _between(self._decode, _REQUESTS, float(requests), _TOKENS, context)

    def prefill_s(self, tokens: int, context: int) -> float:
        """Seconds for the last `tokens` of a request's context."""
        whole = _along(self._prefill, _TOKENS, float(context))
        before = context - tokens
        # The visible pairs before the prompt's last part were done with that part.
        return whole - _along(self._prefill, _TOKENS, float(before)) if before > 0 else whole

    def _price_decode(self, requests: int, context: int) -> float:
        return sum(
            number
            * attention_decode(self._gpu, self._work(layer, requests, 1, context), self._cached).s
            for layer, number in self._layers
        )

    def _price_prefill(self, tokens: int) -> float:
        seconds = 0.0
        for layer, number in self._layers:
            time = attention_forward(self._gpu, self._work(layer, 1, tokens, tokens), "bfloat16")
            visible = min(tokens, layer.window or tokens, layer.chunk or tokens)
            seconds += number * time.s * visible / tokens
        return seconds

    def _work(self, layer: Layer, requests: int, tokens: int, context: int) -> Attention:
        heads, kv_heads = (
            max(1, number // self._ranks) for number in (layer.heads, layer.kv_heads)
        )
        visible = context
        if tokens == 1:
            visible = min(context, layer.window or context, layer.chunk or context)
        return Attention(requests, heads, kv_heads, layer.head_dim, tokens, visible)


def _is_attention(work: GivenWork) -> bool:
    return isinstance(work, KernelLaunch) and rule_of(work.name) is Rule.ATTENTION


def _between(
    price: Callable[[int, int], float],
    rows: tuple[int, ...],
    row: float,
    columns: tuple[int, ...],
    column: float,
) -> float:
    index, share = _place(rows, row)
    low, high = (
        _along(lambda point, each=each: price(each, point), columns, column)  # type: ignore[misc]
        for each in rows[index : index + 2]
    )
    return max(0.0, low * (1 - share) + high * share)


def _along(price: Callable[[int], float], points: tuple[int, ...], value: float) -> float:
    index, share = _place(points, value)
    return price(points[index]) * (1 - share) + price(points[index + 1]) * share


def _place(points: tuple[int, ...], value: float) -> tuple[int, float]:
    """The point below a value, and its share of the way to the next, which may be beyond 1."""
    index = min(max(bisect.bisect_right(points, value) - 1, 0), len(points) - 2)
    return index, max(0.0, (value - points[index]) / (points[index + 1] - points[index]))
