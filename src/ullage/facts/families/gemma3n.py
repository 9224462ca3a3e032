"""Gemma 3n: layers that read another's keys, an embedding for each layer, several inputs (AltUp).

The last `num_kv_shared_layers` compute queries alone, and read the keys and values of the last
layer before them that sees as much.

Source: modeling_gemma3n.py of transformers 5.23, and the defaults of its configuration class; of a
model of several parts the text alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ullage.facts.families.blocks import (
    FULL,
    SLIDING,
    Block,
    Mlp,
    Shape,
    attend,
    linear,
    norm,
    read_kinds,
)
from ullage.facts.families.config import Config
from ullage.facts.families.decoders import attention_shape, stack
from ullage.facts.families.layers import Model, Part, Weight


@dataclass(frozen=True, slots=True)
class SharingLayer:
    """A layer whose keys and values may be another's.

    Attributes:
        kind: what it sees, FULL or SLIDING.
        shape: of its attention.
        sizes: of its MLP.
        num_kv: matrices for keys and values: 2; 1: a key is its value; 0: they are another's.
        is_stored: layers behind it may read its keys and values.
    """

    kind: str
    shape: Shape
    sizes: Mlp
    num_kv: int = 2
    is_stored: bool = False


def describe_gemma3n(config: Config) -> tuple[SharingLayer, ...]:
    """Its layers in order."""
    shape = attention_shape(config)
    kinds = sharing_kinds(config, every=5)
    widths = config.fields.get("intermediate_size")
    if not isinstance(widths, list | tuple):
        widths = [config.number("intermediate_size")] * len(kinds)
    layers = [
        SharingLayer(kind, shape, Mlp(width)) for kind, width in zip(kinds, widths, strict=True)
    ]
    return share_keys(layers, config.number("num_kv_shared_layers"))


def sharing_kinds(config: Config, *, every: int) -> tuple[str, ...]:
    """The kind of each layer; by default each Nth sees everything."""
    count = config.number("num_hidden_layers", least=1)
    usual = tuple(SLIDING if (index + 1) % every else FULL for index in range(count))
    return read_kinds(config, count, {SLIDING, FULL}, "layer_types", usual=usual)


def share_keys(layers: Sequence[SharingLayer], count: int) -> tuple[SharingLayer, ...]:
    """The layers, of which the last ones read the keys of those before (kv_sharing_modes)."""
    first = len(layers) - count
    last = {layer.kind: place for place, layer in enumerate(layers[:first])} if count else {}
    return tuple(
        replace(
            layer, num_kv=layer.num_kv if place < first else 0, is_stored=place in last.values()
        )
        for place, layer in enumerate(layers)
    )


def sharing_stack(
    config: Config, layers: Sequence[SharingLayer], more: Sequence[Weight], each: Sequence[Weight]
) -> Model:
    """The model of such layers; more: weights beside them; each: what every layer has besides."""
    hidden, count = config.number("hidden_size"), len(layers)
    window = config.number("sliding_window", least=1)
    has_bias = config.flag("attention_bias", default=False)
    wide, weights = config.number("hidden_size_per_layer_input"), [*more]
    inputs: list[Weight] = []
    if wide:
        rows = config.number("vocab_size_per_layer_input")
        weights += [Weight(Part.EMBEDDING, rows, count * wide), norm(wide)]
        weights += [linear(Part.MLP, count * wide, hidden, None)]
        inputs += [linear(Part.MLP, wide, hidden, None), linear(Part.MLP, hidden, wide, None)]
        inputs += [norm(hidden)]
    blocks: list[Block] = []
    for layer in layers:
        shape, is_shared = layer.shape, not layer.num_kv
        norms = norm(shape.head_dim, count=2 - is_shared)
        (layer_cache,), own = attend(
            shape, norms, *inputs, *each, qkv_bias=has_bias, out_bias=has_bias,
            num_kv=layer.num_kv,
        )  # fmt: skip
        window_of_layer = window if layer.kind == SLIDING else None
        blocks.append(((replace(layer_cache, window=window_of_layer, is_shared=is_shared),), own))
    widest = max((x.shape.heads + 2 * x.shape.kv_heads) * x.shape.head_dim for x in layers)
    sizes = [layer.sizes for layer in layers]
    return stack(config, blocks, *weights, widest=widest, sizes=sizes)


def read_gemma3n(config: Config) -> Model:
    """The cache and weights of a Gemma 3n."""
    hidden, inputs = config.number("hidden_size"), config.number("altup_num_inputs")
    more = [linear(Part.MLP, hidden, hidden, None, count=2 * (inputs - 1))]
    each = [*_altup(config, hidden, inputs)]
    return sharing_stack(config, describe_gemma3n(config), more, each)


def _altup(config: Config, hidden: int, inputs: int) -> Iterator[Weight]:
    # Several inputs of each layer (AltUp), and a narrow residual (Laurel).
    rank = config.number("laurel_rank")
    yield linear(Part.MLP, rank, hidden, None)
    yield linear(Part.MLP, hidden, rank, None)
    yield Weight(Part.ROUTER, inputs, hidden + inputs + inputs * inputs, most_shards=1)
    yield norm(hidden, count=3)
