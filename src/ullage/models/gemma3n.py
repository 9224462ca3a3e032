"""Gemma 3n and Gemma 4: layers that read another's keys, and an embedding for each layer.

The last `num_kv_shared_layers` compute queries alone, and read the keys and values of the last
layer before them that sees as much.

Source: modeling_gemma3n.py and modeling_gemma4.py of transformers 5.23, and the defaults of their
configuration classes; of a model of several parts the text alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ullage.models.blocks import Block, Mlp, attend, heads_of, linear, mlp, norm, read_kinds, stack
from ullage.models.config import Config
from ullage.models.decoders import FULL, SLIDING
from ullage.models.layers import Model, Part, Weight, merge

# Each Nth layer sees everything, key and value heads, and layers that share, by default.
GEMMAS: Final = {"gemma3n_text": (5, 2, 15), "gemma4_text": (6, 4, 0)}


def read_gemma(config: Config, model_type: str) -> Model:
    """What a Gemma with shared keys and values keeps and weighs."""
    every, kv_heads, usual = GEMMAS[model_type]
    local, is_3n = heads_of(config, head_dim=256, kv_heads=kv_heads), model_type == "gemma3n_text"
    count, hidden = config.number("num_hidden_layers", least=1), local.hidden
    usual_kinds = tuple(SLIDING if (index + 1) % every else FULL for index in range(count))
    kinds = read_kinds(config, count, {SLIDING, FULL}, "layer_types", usual=usual_kinds)
    first = count - config.number("num_kv_shared_layers", default=usual)
    window = config.number("sliding_window", default=512, least=1)
    has_bias = config.flag("attention_bias", default=False)
    wide = config.number("hidden_size_per_layer_input", default=256)
    weights: list[Weight] = []
    if wide:
        rows = config.number("vocab_size_per_layer_input", default=262_144)
        weights += [Weight(Part.EMBEDDING, rows, count * wide), norm(wide)]
        weights += [linear(Part.MLP, count * wide, hidden, None)]
    experts = _experts(config, hidden)
    if is_3n:
        inputs = config.number("altup_num_inputs", default=4)
        weights += [linear(Part.MLP, hidden, hidden, None, count=2 * (inputs - 1))]
    whole, is_same = local, config.flag("attention_k_eq_v", default=False)
    if not is_3n:  # layers that see everything have heads of their own
        whole = replace(local, head_dim=config.number("global_head_dim", default=512))
    if is_same:
        kv_heads = config.number("num_global_key_value_heads", default=local.kv_heads)
        whole = replace(whole, kv_heads=kv_heads)
    blocks: list[Block] = []
    sizes: list[Mlp] = []
    widest = 0
    for index, kind in enumerate(kinds):
        is_shared, is_full = index >= first, kind == FULL or (index == count - 1 and not is_3n)
        shape = whole if is_full else local
        num_kv = 0 if is_shared else 2 - (is_full and is_same)
        (layer,), weights_of = attend(shape, *experts, has_bias=has_bias, num_kv=num_kv)
        layer = replace(layer, window=None if is_full else window, is_shared=is_shared)
        own = [*weights_of]
        own += [norm(shape.head_dim, count=2 - is_shared), norm(hidden, count=2)]
        if wide:
            own += [linear(Part.MLP, wide, hidden, None), linear(Part.MLP, hidden, wide, None)]
            own += [norm(hidden)]
        if is_3n:
            own += _altup(config, hidden, inputs)
        blocks.append(((layer,), tuple(own)))
        sizes.append(Mlp(_width(config, index, is_shared=is_shared)))
        widest = max(widest, (shape.heads + 2 * shape.kv_heads) * shape.head_dim)
    model = stack(config, model_type, blocks, sizes, widest=widest, is_tied=True)
    top = config.number("top_k_experts", default=0) if experts else 0
    return replace(model, weights=merge([*model.weights, *weights]), top_experts=top)


def _width(config: Config, index: int, *, is_shared: bool) -> int:
    # Of a layer's MLP; Gemma 3n may list them, Gemma 4's that share may be twice as wide.
    if isinstance(config.fields.get("intermediate_size"), list | tuple):
        return int(config.row("intermediate_size")[index])
    is_double = is_shared and config.flag("use_double_wide_mlp", default=False)
    return int(config.number("intermediate_size")) * (1 + is_double)


def _experts(config: Config, hidden: int) -> list[Weight]:
    # Gemma 4's experts run beside the MLP, with three norms and two scales more.
    if not config.flag("enable_moe_block", default=False):
        return []
    count = config.number("num_experts", least=1)
    each = Mlp(config.number("moe_intermediate_size", least=1), count)
    scales = [Weight(Part.ROUTER, size, most_shards=1) for size in (hidden, count)]
    return [*mlp(hidden, each), *scales, norm(hidden, count=3)]


def _altup(config: Config, hidden: int, inputs: int) -> Iterator[Weight]:
    # Gemma 3n keeps several inputs of each layer (AltUp), and a narrow residual (Laurel).
    rank = config.number("laurel_rank", default=64)
    yield linear(Part.MLP, rank, hidden, None)
    yield linear(Part.MLP, hidden, rank, None)
    yield Weight(Part.ROUTER, inputs, hidden + inputs + inputs * inputs, most_shards=1)
    yield norm(hidden, count=3)
