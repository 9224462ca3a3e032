"""Decoders with multi-head latent attention: DeepSeek V2 and V3, Kimi K2, GLM 4.7 Flash.

Source: modeling_deepseek_v2.py, modeling_deepseek_v3.py and modeling_glm4_moe_lite.py of
transformers 5.19.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ullage.models.blocks import Mlp, linear, mlp, norm, vocabulary
from ullage.models.config import Config
from ullage.models.layers import Latent, Model, Part, Weight, merge

LATENT_TYPES: Final = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_k2")


def read_latent(config: Config, model_type: str) -> Model:
    """What a decoder with latent attention keeps and weighs; MTP layers are not loaded."""
    hidden = config.number("hidden_size", least=1)
    count = config.number("num_hidden_layers", least=1)
    heads = config.number("num_attention_heads", least=1)
    width = config.number("kv_lora_rank", least=1) + config.number("qk_rope_head_dim")
    sizes = [_sizes(config, index) for index in range(count)]
    weights = [*vocabulary(config, hidden, is_tied=False), norm(hidden)]
    for size in sizes:
        weights += [*_projections(config, hidden, heads), *mlp(hidden, size), norm(hidden, count=2)]
    key = config.number("qk_nope_head_dim") + config.number("qk_rope_head_dim")
    return Model(
        model_type,
        hidden,
        config.number("vocab_size"),
        max(heads * (2 * key + config.number("v_head_dim")), 2 * max(size.width for size in sizes)),
        (Latent(heads, width),) * count,
        merge(weights),
        top_experts=config.number("num_experts_per_tok", default=0) or 0,
        context=config.number("max_position_embeddings", default=None),
    )


def _sizes(config: Config, index: int) -> Mlp:
    experts = config.number("n_routed_experts", default=0)
    kinds = config.row("mlp_layer_types", default=None)
    first = 1 if config.model_type == "glm4_moe_lite" else None
    if kinds is not None:
        is_dense = kinds[index] == "dense"
    elif not experts:
        is_dense = True
    elif first is not None:
        is_dense = index < config.number("first_k_dense_replace", default=first)
    else:
        is_dense = index < config.number("first_k_dense_replace")
    if is_dense or index % config.number("moe_layer_freq", default=1, least=1):
        return Mlp(config.number("intermediate_size"))
    width = config.number("moe_intermediate_size")
    return Mlp(width, experts, width * config.number("n_shared_experts", default=0))


def _projections(config: Config, hidden: int, heads: int) -> Iterator[Weight]:
    rank, rope = config.number("kv_lora_rank"), config.number("qk_rope_head_dim")
    nope, value = config.number("qk_nope_head_dim"), config.number("v_head_dim")
    query = heads * (nope + rope)
    if config.has("q_lora_rank"):
        low = config.number("q_lora_rank")
        yield linear(Part.ATTENTION, low, hidden, 1)
        yield norm(low)
        yield linear(Part.ATTENTION, query, low, heads)
    else:
        yield linear(Part.ATTENTION, query, hidden, heads)
    yield linear(Part.ATTENTION, rank + rope, hidden, 1)
    yield norm(rank)
    yield linear(Part.ATTENTION, heads * (nope + value), rank, heads)
    yield linear(Part.ATTENTION, hidden, heads * value, heads)
    if config.flag("attention_bias", default=False):
        yield Weight(Part.ATTENTION, rank + rope + hidden, most_shards=1)
        if config.has("q_lora_rank"):
            yield Weight(Part.ATTENTION, config.number("q_lora_rank"), most_shards=1)
