"""Gemma 4: layers that read another's keys, wider heads where everything is seen, experts.

Source: modeling_gemma4.py of transformers 5.23, and the defaults of its configuration class; of a
model of several parts the text alone.
"""

from __future__ import annotations

from dataclasses import replace

from ullage.facts.families.blocks import FULL, Mlp, mlp, norm
from ullage.facts.families.config import Config
from ullage.facts.families.decoders import attention_shape
from ullage.facts.families.gemma3n import SharingLayer, share_keys, sharing_kinds, sharing_stack
from ullage.facts.families.layers import Model, Part, Weight


def describe_gemma4(config: Config) -> tuple[SharingLayer, ...]:
    """Its layers in order; the last one sees everything."""
    local = attention_shape(config)
    whole = replace(local, head_dim=config.number("global_head_dim"))
    is_same = config.flag("attention_k_eq_v", default=False)
    if is_same:
        heads = config.number("num_global_key_value_heads", default=local.kv_heads)
        whole = replace(whole, kv_heads=heads)
    width = config.number("intermediate_size")
    layers = [
        SharingLayer(FULL, whole, Mlp(width), 2 - is_same)
        if kind == FULL
        else SharingLayer(kind, local, Mlp(width))
        for kind in (*sharing_kinds(config, every=6)[:-1], FULL)
    ]
    shared = share_keys(layers, config.number("num_kv_shared_layers"))
    is_double = config.flag("use_double_wide_mlp", default=False)
    return tuple(
        layer if layer.num_kv else replace(layer, sizes=Mlp(width * (1 + is_double)))
        for layer in shared
    )


def gemma4_experts(config: Config) -> Mlp | None:
    """The experts that run beside each MLP; None: there are none."""
    if not config.flag("enable_moe_block", default=False):
        return None
    width = config.number("moe_intermediate_size", least=1)
    return Mlp(width, config.number("num_experts", least=1))


def read_gemma4(config: Config) -> Model:
    """The cache and weights of a Gemma 4."""
    hidden, experts = config.number("hidden_size"), gemma4_experts(config)
    each: list[Weight] = []
    if experts is not None:  # with two scales and three norms
        scales = [Weight(Part.ROUTER, n, most_shards=1) for n in (hidden, experts.experts)]
        each = [*mlp(hidden, experts), *scales, norm(hidden, count=3)]
    model = sharing_stack(config, describe_gemma4(config), (), each)
    top = config.number("top_k_experts") if experts is not None else 0
    return replace(model, top_experts=top)
