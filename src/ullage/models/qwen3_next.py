"""Qwen3-Next, Qwen3.5 and its mixture: gated delta nets, and attention with a gate among them.

Source: modeling_qwen3_next.py, modeling_qwen3_5.py and modeling_qwen3_5_moe.py of transformers
5.23; the layers that predict several tokens (MTP) are not loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from ullage.models.blocks import (
    FULL,
    LINEAR,
    Block,
    Mlp,
    Shape,
    attend,
    heads_of,
    linear,
    norm,
    read_kinds,
    stack,
)
from ullage.models.config import Config
from ullage.models.layers import Model, Part, Recurrent, Weight

# Key and value heads, and experts, where the configuration has none.
DELTA_NETS: Final = {"qwen3_next": (2, 512), "qwen3_5_text": (4, 0), "qwen3_5_moe_text": (2, 256)}


class DeltaNet(NamedTuple):
    """The parts of a decoder with gated delta nets.

    Attributes:
        shape: of attention; its queries come with a gate of the same width.
        kinds: what each layer looks back with.
        state: of a gated delta net.
        sizes: of every layer's MLP or experts.
    """

    shape: Shape
    kinds: tuple[str, ...]
    state: Recurrent
    sizes: Mlp


def describe_delta_net(config: Config, model_type: str) -> DeltaNet:
    """The sizes of a decoder with gated delta nets."""
    kv_heads, experts = DELTA_NETS[model_type]
    shape = heads_of(config, head_dim=256, kv_heads=kv_heads)
    count = config.number("num_hidden_layers", least=1)
    every = config.number("full_attention_interval", default=4)
    usual = tuple(LINEAR if (index + 1) % every else FULL for index in range(count))
    kinds = read_kinds(config, count, {LINEAR, FULL}, "layer_types", usual=usual)
    return DeltaNet(shape, kinds, _delta_net(config), _sizes(config, experts))


def read_delta_net(config: Config, model_type: str) -> Model:
    """Reads what a decoder with gated delta nets keeps and weighs."""
    shape, kinds, state, sizes = describe_delta_net(config, model_type)
    has_bias = config.flag("attention_bias", default=False)
    wide = shape.heads * shape.head_dim
    gate = (
        linear(Part.ATTENTION, wide, shape.hidden, shape.heads),
        Weight(Part.ATTENTION, wide, count=has_bias, most_shards=shape.heads),
    )
    mixers: dict[str, Block] = {
        LINEAR: ((state,), tuple(_delta_net_weights(state, shape.hidden))),
        FULL: attend(shape, *gate, norm(shape.head_dim, count=2), has_bias=has_bias),
    }
    blocks, widest = [mixers[kind] for kind in kinds], 2 * max(wide, state.channels)
    return stack(config, model_type, blocks, [sizes] * len(kinds), widest=widest)


def _sizes(config: Config, usual: int) -> Mlp:
    # A dense model is one that has no experts by default, whatever its fields say.
    experts = usual and config.number("num_experts", default=usual)
    if not experts:
        return Mlp(config.number("intermediate_size"))
    shared = config.number("shared_expert_intermediate_size", default=512)
    return Mlp(config.number("moe_intermediate_size", default=512), experts, shared, bool(shared))


def _delta_net(config: Config) -> Recurrent:
    keys = config.number("linear_num_key_heads", default=16)
    values = config.number("linear_num_value_heads", default=32)
    key, value = (
        config.number(f"linear_{name}_head_dim", default=128) for name in ("key", "value")
    )
    steps = config.number("linear_conv_kernel_dim", default=4) - 1
    channels = 2 * keys * key + values * value
    return Recurrent("delta", channels, steps, heads=values, rows=value, columns=key)


def _delta_net_weights(state: Recurrent, hidden: int) -> Iterator[Weight]:
    part, heads = Part.RECURRENT, state.heads
    values = heads * state.rows
    yield linear(part, state.channels + values, hidden, heads)
    yield linear(part, 2 * heads, hidden, heads)
    yield linear(part, hidden, values, heads)
    yield Weight(part, state.channels, state.steps + 1, most_shards=heads)
    yield Weight(part, heads, count=2, most_shards=heads)
    yield norm(state.rows)
