"""Decoders with multi-head latent attention: DeepSeek V2, V3 and V3.2, Kimi K2, GLM 4.7 and 5.

DeepSeek V3.2 and GLM 5 (glm_moe_dsa) choose the tokens that attention sees by an indexer.

Source: the modeling files deepseek_v2, deepseek_v3 and glm4_moe_lite of transformers 5.19,
deepseek_v32 and glm_moe_dsa of 5.23.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ullage.facts.families.blocks import Block, linear, norm
from ullage.facts.families.config import Config
from ullage.facts.families.decoders import stack
from ullage.facts.families.layers import Index, Latent, Model, Part, Weight


def read_latent(config: Config) -> Model:
    """The cache and weights of a decoder with latent attention; MTP layers are not loaded."""
    hidden = config.number("hidden_size", least=1)
    count = config.number("num_hidden_layers", least=1)
    heads = config.number("num_attention_heads", least=1)
    width = config.number("kv_lora_rank", least=1) + config.number("qk_rope_head_dim")
    own = tuple(_projections(config, hidden, heads))
    chosen = find_indexer(config)
    block = (Latent(heads, width, None if chosen is None else chosen.most),), own
    blocks: list[Block] = [block] * count
    if chosen is not None:
        indexer = Index(chosen.heads, chosen.width)
        both = (*block[0], indexer), (*own, *_indexer(config, indexer, hidden))
        blocks = [both if chosen.layers[index] else block for index in range(count)]
    key = config.number("qk_nope_head_dim") + config.number("qk_rope_head_dim")
    return stack(config, blocks, widest=heads * (2 * key + config.number("v_head_dim")))


class Indexer(NamedTuple):
    """How layers choose the tokens that their attention sees.

    Attributes:
        heads: query heads of the indexer.
        width: elements of one of its keys.
        most: tokens that are seen at most.
        layers: whether a layer chooses itself; the others take those of the last that did.
    """

    heads: int
    width: int
    most: int
    layers: tuple[bool, ...]


def find_indexer(config: Config) -> Indexer | None:
    """The indexer of DeepSeek V3.2 and GLM 5; None: all tokens are seen."""
    if config.model_type not in ("deepseek_v32", "glm_moe_dsa"):
        return None
    layers = range(config.number("num_hidden_layers", least=1))
    return Indexer(
        config.number("index_n_heads"),
        config.number("index_head_dim"),
        config.number("index_topk"),
        tuple(_has_indexer(config, index) for index in layers),
    )


def _has_indexer(config: Config, index: int) -> bool:
    kinds = config.row("indexer_types", default=None)
    if kinds is not None:
        return bool(kinds[index] == "full")
    if config.has("index_topk_pattern"):
        return bool(config.fields["index_topk_pattern"][index] in ("F", "full"))
    every = max(config.number("index_topk_freq", default=1), 1)
    return bool(max(index + 1 - config.number("index_skip_topk_offset", default=2), 0) % every == 0)


def _indexer(config: Config, indexer: Index, hidden: int) -> Iterator[Weight]:
    # What an indexer computes queries, keys and weights of heads with; it is on every rank.
    rank, part = config.number("q_lora_rank"), Part.ATTENTION
    yield linear(part, indexer.heads * indexer.width, rank, 1)
    yield linear(part, indexer.width, hidden, 1)
    yield norm(indexer.width, has_bias=True)
    yield Weight(part, indexer.heads, hidden, most_shards=1)


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
