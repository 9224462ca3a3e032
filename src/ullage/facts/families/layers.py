"""The parts of a model, for serving: the caches of its layers, and its weights.

A layer keeps something for each token that it has read (keys and values, or a latent), or
something of a fixed size for each request (a recurrent state, the keys of an encoded input), or
nothing. A layer that keeps two things, such as attention beside a state space, is two entries.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from ullage.ground.errors import SpecError


@dataclass(frozen=True, slots=True)
class Attention:
    """Keys and values of earlier tokens.

    Attributes:
        heads: query heads.
        kv_heads: key and value heads.
        head_dim: elements of a key; a value has as many.
        window: tokens that are seen, the newest included; None: all.
        chunk: tokens are cut into chunks of this many, and only the current one is seen.
        is_shared: they are an earlier layer's, and this one keeps nothing.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    chunk: int | None = None
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class Latent:
    """One compressed vector for each earlier token, from which all heads' keys and values follow.

    Attributes:
        heads: query heads.
        width: elements: the rank and the part of the key that carries the position.
        chosen: tokens that are seen at most, those that an indexer chooses; None: all.
    """

    heads: int
    width: int
    chosen: int | None = None


@dataclass(frozen=True, slots=True)
class Index:
    """A key for each earlier token, by which an indexer chooses those that attention sees.

    Attributes:
        heads: query heads of the indexer; every rank has all.
        width: elements of a key.
    """

    heads: int
    width: int


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A state of a fixed size for each request, however long it grows.

    Attributes:
        kind: "mamba", "mamba2", "delta" (gated delta net) or "conv" (short convolution).
        channels: channels of the convolution, without those of the groups.
        group_channels: channels of one group (2 x state size); the group's heads share them.
        groups: how many.
        steps: inputs of each channel that the state keeps: the kernel's width less one.
        heads: heads of the state; 0: there is only the convolution's state.
        rows: rows of a head's state.
        columns: columns of a head's state.
        is_state_fp32: the configuration asks the engine to keep the state in 32 bits.
    """

    kind: str
    channels: int
    steps: int
    group_channels: int = 0
    groups: int = 0
    heads: int = 0
    rows: int = 0
    columns: int = 0
    is_state_fp32: bool = False

    @property
    def convolved(self) -> int:
        """All channels of the convolution; of Mamba 2: the input, B and C."""
        return self.channels + self.groups * self.group_channels


@dataclass(frozen=True, slots=True)
class Cross:
    """Keys and values of an encoded input, made once for each request.

    Attributes:
        heads: query, key and value heads.
        head_dim: elements of a key.
        positions: positions of the encoder's output, at most; None: one for each input token.
    """

    heads: int
    head_dim: int
    positions: int | None


@dataclass(frozen=True, slots=True)
class Encoder:
    """Attention over a whole input at once: it keeps nothing."""

    heads: int
    head_dim: int


Layer = Attention | Latent | Index | Recurrent | Cross | Encoder


class Part(Enum):
    """The use of weights."""

    EMBEDDING = "embedding"
    HEAD = "output head"
    ATTENTION = "attention"
    MLP = "MLP"
    EXPERTS = "experts"
    ROUTER = "router"
    RECURRENT = "recurrent"
    NORM = "norm"
    VISION = "vision"


@dataclass(frozen=True, slots=True)
class Weight:
    """Weights of one shape.

    Attributes:
        part: what they are for.
        out: rows.
        into: columns; 1: a vector.
        count: how many there are of this shape.
        is_linear: matrices of linear layers, which quantisation packs; it leaves the rest alone.
        most_shards: over how many ranks tensor parallelism can cut it; None: any number.
    """

    part: Part
    out: int
    into: int = 1
    count: int = 1
    is_linear: bool = False
    most_shards: int | None = None

    @property
    def elements(self) -> int:
        """The elements of all of them together."""
        return self.out * self.into * self.count


class Uncounted(NamedTuple):
    """A part of a configuration whose weights are not counted.

    Attributes:
        name: its field.
        likely, most: parameters by its sizes; None: it states none.
    """

    name: str
    likely: int | None = None
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """The parts of a model that serving needs to know.

    Attributes:
        model_type: as transformers calls it.
        hidden: elements of a token's vector.
        vocab: size of the vocabulary.
        widest: the most elements that a layer computes for a token: in its MLP, or as q, k and v.
        layers: what each layer keeps, in order.
        weights: each shape once.
        uncounted: other parts of the configuration.
        top_experts: experts that multiply a token's vector; 0: there are no experts.
        context: tokens that it was trained for; None: unknown.
    """

    model_type: str
    hidden: int
    vocab: int
    widest: int
    layers: tuple[Layer, ...]
    weights: tuple[Weight, ...]
    uncounted: tuple[Uncounted, ...] = ()
    top_experts: int = 0
    context: int | None = None

    @property
    def parameters(self) -> int:
        """Elements of all weights."""
        return sum(weight.elements for weight in self.weights)

    def check_tensor_parallel(self, size: int) -> None:
        """Refuses a number of ranks over which the heads cannot be cut.

        Raises:
            SpecError: heads do not divide, or key and value heads neither divide nor replicate.
        """
        for layer in self.layers:
            if isinstance(layer, Recurrent):
                self._check_recurrent(layer, size)
                continue
            if layer.heads % size and not isinstance(layer, Index):
                raise SpecError(
                    f"num_attention_heads={layer.heads} is not a multiple of tensor_parallel={size}"
                    f"; take one of {_divisors(layer.heads)}"
                )
            if isinstance(layer, Attention) and layer.kv_heads % size and size % layer.kv_heads:
                raise SpecError(
                    f"num_key_value_heads={layer.kv_heads} can neither be divided among "
                    f"tensor_parallel={size} ranks nor repeated on them; take a multiple or a "
                    f"divisor of {layer.kv_heads}"
                )

    def _check_recurrent(self, layer: Recurrent, size: int) -> None:
        uneven = layer.heads % size or layer.channels % size
        # A single group is repeated on every rank; several must be cut evenly.
        if uneven or (layer.groups > 1 and layer.groups % size):
            raise SpecError(
                f"{self.model_type}: a recurrent layer of {layer.heads} heads, {layer.channels} "
                f"channels and {layer.groups} groups cannot be cut for tensor_parallel={size}"
            )


_SHOWN: Final = 8


def _divisors(number: int) -> str:
    divisors = [n for n in range(1, number + 1) if number % n == 0]
    return ", ".join(map(str, divisors[:_SHOWN])) + (", ..." if len(divisors) > _SHOWN else "")


def merge(weights: Iterable[Weight]) -> tuple[Weight, ...]:
    """The same weights, each shape once."""
    counts: dict[Weight, int] = {}
    for weight in weights:
        single = weight if weight.count == 1 else replace(weight, count=1)
        counts[single] = counts.get(single, 0) + weight.count
    return tuple(
        single if count == 1 else replace(single, count=count)
        for single, count in counts.items()
        if count
    )
