"""Models with an encoder: Whisper, BART and T5 with a decoder behind it, BERT and RoBERTa without.

Source: the modeling files of transformers 5.19. A default is one of its configuration classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ullage.models.blocks import Shape, attention, dense, linear, norm, vocabulary
from ullage.models.config import Config
from ullage.models.layers import Attention, Cross, Encoder, Layer, Model, Part, Weight, merge

__all__ = ["ENCODERS"]


def _shape(config: Config, hidden: int, field: str) -> Shape:
    heads = config.number(field, least=1)
    if hidden % heads:
        raise config.wrong("d_model", f"found {hidden}, expected a multiple of {field}={heads}")
    return Shape(hidden, heads, heads, hidden // heads)


def _attend(shape: Shape, *, has_key_bias: bool) -> Iterator[Weight]:
    """Attention with biases, and its normalisation; Whisper's keys have none."""
    yield from attention(shape, out_bias=True)
    wide = shape.heads * shape.head_dim
    yield Weight(Part.ATTENTION, wide, count=2 + has_key_bias, most_shards=shape.heads)
    yield norm(shape.hidden, has_bias=True)


def _decoded(hidden: int, shape: Shape, positions: int | None, count: int) -> tuple[Layer, ...]:
    own = Attention(shape.heads, shape.heads, hidden // shape.heads)
    return (own, Cross(shape.heads, hidden // shape.heads, positions)) * count


def _whisper(config: Config) -> Model:
    hidden = config.number("d_model", least=1)
    encoder = _shape(config, hidden, "encoder_attention_heads")
    decoder = _shape(config, hidden, "decoder_attention_heads")
    frames = config.number("max_source_positions", default=1500)
    context = config.number("max_target_positions", default=448)
    weights = [*vocabulary(config, hidden, is_tied=True)]
    bins = config.number("num_mel_bins", default=80)
    weights += [Weight(Part.MLP, hidden, 3 * bins), Weight(Part.MLP, hidden, 3 * hidden)]
    weights += [Weight(Part.MLP, hidden, count=2), norm(hidden, has_bias=True, count=2)]
    weights.append(Weight(Part.EMBEDDING, frames + context, hidden, most_shards=1))
    weights += _stacks(config, encoder, decoder, has_key_bias=False)
    heads = (encoder.heads, encoder.head_dim)
    layers = (Encoder(*heads),) * config.number("encoder_layers")
    layers_behind = _decoded(hidden, decoder, frames, config.number("decoder_layers"))
    widest = max(3 * hidden, config.number("encoder_ffn_dim"), config.number("decoder_ffn_dim"))
    return Model(
        "whisper", hidden, config.number("vocab_size"), widest, layers + layers_behind,
        merge(weights), context=context,
    )  # fmt: skip


def _stacks(
    config: Config, encoder: Shape, decoder: Shape, *, has_key_bias: bool
) -> Iterator[Weight]:
    hidden = encoder.hidden
    for _ in range(config.number("encoder_layers", least=1)):
        yield from _attend(encoder, has_key_bias=has_key_bias)
        yield from dense(hidden, config.number("encoder_ffn_dim"), is_gated=False, has_bias=True)
        yield norm(hidden, has_bias=True)
    for _ in range(config.number("decoder_layers", least=1)):
        yield from _attend(decoder, has_key_bias=has_key_bias)
        yield from _attend(decoder, has_key_bias=has_key_bias)
        yield from dense(hidden, config.number("decoder_ffn_dim"), is_gated=False, has_bias=True)
        yield norm(hidden, has_bias=True)


def _bart(config: Config) -> Model:
    hidden = config.number("d_model", least=1)
    encoder = _shape(config, hidden, "encoder_attention_heads")
    decoder = _shape(config, hidden, "decoder_attention_heads")
    context = config.number("max_position_embeddings", default=1024)
    weights = [*vocabulary(config, hidden, is_tied=True), norm(hidden, has_bias=True, count=2)]
    # The first two positions stand for padding.
    weights.append(Weight(Part.EMBEDDING, context + 2, hidden, count=2, most_shards=1))
    weights += _stacks(config, encoder, decoder, has_key_bias=True)
    layers = (Encoder(encoder.heads, encoder.head_dim),) * config.number("encoder_layers")
    layers_behind = _decoded(hidden, decoder, None, config.number("decoder_layers"))
    widest = max(3 * hidden, config.number("encoder_ffn_dim"), config.number("decoder_ffn_dim"))
    return Model(
        "bart", hidden, config.number("vocab_size"), widest, layers + layers_behind,
        merge(weights), context=context,
    )  # fmt: skip


def _t5(config: Config) -> Model:
    hidden, heads = config.number("d_model", least=1), config.number("num_heads", least=1)
    shape = Shape(hidden, heads, heads, config.number("d_kv", least=1))
    before = config.number("num_layers", least=1)
    behind = config.number("num_decoder_layers", default=before)
    gated = config.text("feed_forward_proj", default="relu").startswith("gated-")
    width = config.number("d_ff")
    buckets = config.number("relative_attention_num_buckets", default=32)
    weights = [*vocabulary(config, hidden, is_tied=True), norm(hidden, count=2)]
    weights.append(Weight(Part.ATTENTION, buckets, heads, count=2, most_shards=heads))
    for _ in range(before):
        weights += [*attention(shape), norm(hidden, count=2)]
        weights += dense(hidden, width, is_gated=gated, has_bias=False)
    for _ in range(behind):
        weights += [*attention(shape), *attention(shape), norm(hidden, count=3)]
        weights += dense(hidden, width, is_gated=gated, has_bias=False)
    layers: tuple[Layer, ...] = (Encoder(heads, shape.head_dim),) * before
    layers += (
        Attention(heads, heads, shape.head_dim),
        Cross(heads, shape.head_dim, None),
    ) * behind
    widest = max(3 * heads * shape.head_dim, 2 * width)
    return Model(
        "t5", hidden, config.number("vocab_size"), widest, layers, merge(weights),
    )  # fmt: skip


def _bert(config: Config) -> Model:
    hidden = config.number("hidden_size", least=1)
    shape = _shape(config, hidden, "num_attention_heads")
    width, layers = config.number("intermediate_size"), config.number("num_hidden_layers")
    context = config.number("max_position_embeddings", default=512)
    kinds = config.number("type_vocab_size", default=2)
    vocab = config.number("vocab_size")
    weights = [Weight(Part.EMBEDDING, vocab, hidden), norm(hidden, has_bias=True)]
    weights.append(Weight(Part.EMBEDDING, context + kinds, hidden, most_shards=1))
    for _ in range(layers):
        weights += [*_attend(shape, has_key_bias=True), norm(hidden, has_bias=True)]
        weights += dense(hidden, width, is_gated=False, has_bias=True)
    weights += [linear(Part.HEAD, hidden, hidden, None), Weight(Part.HEAD, hidden, most_shards=1)]
    stack = (Encoder(shape.heads, shape.head_dim),) * layers
    widest = max(3 * hidden, width)
    return Model(config.model_type, hidden, vocab, widest, stack, merge(weights), context=context)


ENCODERS: Final[dict[str, Callable[[Config], Model]]] = {
    "whisper": _whisper,
    "bart": _bart,
    "t5": _t5,
    "bert": _bert,
    "roberta": _bert,
    "xlm-roberta": _bert,
}
