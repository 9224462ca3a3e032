"""Decoders from before Llama: GPT-2, GPT-NeoX, OPT, Falcon.

Source: the modeling files of transformers 5.19. A default is one of its configuration classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ullage.models.blocks import Shape, attention, dense, norm, split_heads, vocabulary
from ullage.models.config import Config
from ullage.models.layers import Attention, Model, Part, Weight, merge


def _model(
    config: Config, model_type: str, shape: Shape, weights: list[Weight], *, layers: int,
    width: int, has_bias: bool, mlp_bias: bool, norms: int = 2, context: int | None = None,
) -> Model:  # fmt: skip
    hidden, attended = shape.hidden, (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    for _ in range(layers):
        weights += attention(shape, qkv_bias=has_bias, out_bias=has_bias)
        weights += dense(hidden, width, is_gated=False, has_bias=mlp_bias)
        weights.append(norm(hidden, has_bias=True, count=norms))
    cached = (Attention(shape.heads, shape.kv_heads, shape.head_dim),) * layers
    vocab, widest = config.number("vocab_size"), max(width, attended)
    return Model(model_type, hidden, vocab, widest, cached, merge(weights), context=context)


def _gpt2(config: Config, model_type: str) -> Model:
    hidden, layers = config.number("n_embd", least=1), config.number("n_layer", least=1)
    heads = config.number("n_head", least=1)
    width = config.number("n_inner", default=None) or 4 * hidden
    context = config.number("n_positions", default=1024)
    shape = split_heads(config, hidden, heads)
    weights = [*vocabulary(config, hidden, is_tied=True)]
    weights += [Weight(Part.EMBEDDING, context, hidden, most_shards=1), norm(hidden, has_bias=True)]
    return _model(config, model_type, shape, weights, layers=layers, width=width, has_bias=True,
                  mlp_bias=True, context=context)  # fmt: skip


def _gpt_neox(config: Config, model_type: str) -> Model:
    hidden, layers = config.number("hidden_size"), config.number("num_hidden_layers")
    heads, width = config.number("num_attention_heads"), config.number("intermediate_size")
    shape = split_heads(config, hidden, heads)
    has_bias = config.flag("attention_bias", default=True)
    weights = [*vocabulary(config, hidden, is_tied=False), norm(hidden, has_bias=True)]
    context = config.number("max_position_embeddings", default=None)
    return _model(config, model_type, shape, weights, layers=layers, width=width, has_bias=has_bias,
                  mlp_bias=True, context=context)  # fmt: skip


def _opt(config: Config, model_type: str) -> Model:
    hidden, layers = config.number("hidden_size"), config.number("num_hidden_layers")
    heads, width = config.number("num_attention_heads"), config.number("ffn_dim")
    shape = split_heads(config, hidden, heads)
    outer = config.number("word_embed_proj_dim", default=hidden)
    context = config.number("max_position_embeddings", default=2048)
    has_bias = config.flag("enable_bias", default=True)
    weights = [*vocabulary(config, outer, is_tied=True)]
    # The first two positions stand for padding.
    weights.append(Weight(Part.EMBEDDING, context + 2, hidden, most_shards=1))
    if outer != hidden:
        weights.append(Weight(Part.EMBEDDING, hidden, outer, count=2, most_shards=1))
    is_before = config.flag("do_layer_norm_before", default=True)
    if is_before and not config.flag("_remove_final_layer_norm", default=False):
        weights.append(norm(hidden, has_bias=True))
    return _model(config, model_type, shape, weights, layers=layers, width=width, has_bias=has_bias,
                  mlp_bias=has_bias, context=context)  # fmt: skip


def _falcon(config: Config, model_type: str) -> Model:
    hidden = config.number("hidden_size", "n_embed")
    heads = config.number("num_attention_heads", "n_head")
    layers = config.number("num_hidden_layers", "n_layer")
    is_new = config.flag("new_decoder_architecture", default=False)
    kv_heads = heads
    if is_new:
        kv_heads = config.number("num_kv_heads", "n_head_kv", default=heads)
    elif config.flag("multi_query", default=True):
        kv_heads = 1
    width = config.number("ffn_hidden_size", default=None) or 4 * hidden
    shape = split_heads(config, hidden, heads, kv_heads)
    has_bias = config.flag("bias", default=False)
    is_parallel = config.flag("parallel_attn", default=True)
    norms = config.number("num_ln_in_parallel_attn", default=2 if is_new else 1)
    weights = [*vocabulary(config, hidden, is_tied=True), norm(hidden, has_bias=True)]
    norms = norms if is_new or is_parallel else 2
    context = config.number("max_position_embeddings", default=2048)
    return _model(config, model_type, shape, weights, layers=layers, width=width, has_bias=has_bias,
                  mlp_bias=has_bias, norms=norms, context=context)  # fmt: skip


OLDER_DECODERS: Final[dict[str, Callable[[Config, str], Model]]] = {
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "opt": _opt,
    "falcon": _falcon,
}
