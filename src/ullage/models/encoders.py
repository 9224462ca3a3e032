"""Models with an encoder: Whisper, BART and T5 with a decoder behind it, BERT and RoBERTa without.

Source: the modeling files of transformers 5.19. A default is one of its configuration classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ullage.models.blocks import Shape, attention, dense, linear, norm, split_heads, vocabulary
from ullage.models.config import Config
from ullage.models.layers import Attention, Cross, Encoder, Layer, Model, Part, Weight, merge


def _attend(shape: Shape, *, has_key_bias: bool) -> Iterator[Weight]:
    # Attention with biases, and its normalisation; Whisper's keys have none.
    yield from attention(shape, out_bias=True)
    wide = shape.heads * shape.head_dim
    yield Weight(Part.ATTENTION, wide, count=2 + has_key_bias, most_shards=shape.heads)
    yield norm(shape.hidden, has_bias=True)


def _decoded(shape: Shape, positions: int | None, count: int) -> tuple[Layer, ...]:
    own = Attention(shape.heads, shape.heads, shape.head_dim)
    return (own, Cross(shape.heads, shape.head_dim, positions)) * count


def _whisper(config: Config, model_type: str) -> Model:
    hidden = config.number("d_model", least=1)
    frames = config.number("max_source_positions", default=1500)
    context = config.number("max_target_positions", default=448)
    weights = [*vocabulary(config, hidden, is_tied=True)]
    bins = config.number("num_mel_bins", default=80)
    weights += [Weight(Part.MLP, hidden, 3 * bins), Weight(Part.MLP, hidden, 3 * hidden)]
    weights += [Weight(Part.MLP, hidden, count=2), norm(hidden, has_bias=True, count=2)]
    weights.append(Weight(Part.EMBEDDING, frames + context, hidden, most_shards=1))
    return _with_stacks(config, weights, frames, context, has_key_bias=False)


def _with_stacks(
    config: Config, weights: list[Weight], positions: int | None, context: int,
    *, has_key_bias: bool,
) -> Model:  # fmt: skip
    # The model of these weights and its two stacks; positions: of the encoder's output.
    hidden, widest = config.number("d_model"), 0
    layers: tuple[Layer, ...] = ()
    for side, attentions in (("encoder", 1), ("decoder", 2)):
        shape = split_heads(config, hidden, config.number(f"{side}_attention_heads", least=1))
        count = config.number(f"{side}_layers", least=1)
        inner = config.number(f"{side}_ffn_dim")
        widest = max(widest, 3 * hidden, inner)
        for _ in range(count):
            for _ in range(attentions):
                weights += _attend(shape, has_key_bias=has_key_bias)
            weights += dense(hidden, inner, is_gated=False, has_bias=True)
            weights.append(norm(hidden, has_bias=True))
        encoder = (Encoder(shape.heads, shape.head_dim),) * count
        layers += encoder if side == "encoder" else _decoded(shape, positions, count)
    vocab = config.number("vocab_size")
    return Model(config.model_type, hidden, vocab, widest, layers, merge(weights), context=context)


def _bart(config: Config, model_type: str) -> Model:
    hidden = config.number("d_model", least=1)
    context = config.number("max_position_embeddings", default=1024)
    weights = [*vocabulary(config, hidden, is_tied=True), norm(hidden, has_bias=True, count=2)]
    # The first two positions stand for padding.
    weights.append(Weight(Part.EMBEDDING, context + 2, hidden, count=2, most_shards=1))
    return _with_stacks(config, weights, None, context, has_key_bias=True)


def _t5(config: Config, model_type: str) -> Model:
    hidden, heads = config.number("d_model", least=1), config.number("num_heads", least=1)
    shape = Shape(hidden, heads, heads, config.number("d_kv", least=1))
    before = config.number("num_layers", least=1)
    behind = config.number("num_decoder_layers", default=before)
    gated = config.text("feed_forward_proj", default="relu").startswith("gated-")
    width = config.number("d_ff")
    buckets = config.number("relative_attention_num_buckets", default=32)
    weights = [*vocabulary(config, hidden, is_tied=True), norm(hidden, count=2)]
    weights.append(Weight(Part.ATTENTION, buckets, heads, count=2, most_shards=heads))
    for attentions in (*before * [1], *behind * [2]):
        weights += attentions * [*attention(shape)]
        weights.append(norm(hidden, count=1 + attentions))
        weights += dense(hidden, width, is_gated=gated, has_bias=False)
    layers: tuple[Layer, ...] = (Encoder(heads, shape.head_dim),) * before
    layers += _decoded(shape, None, behind)
    widest = max(3 * heads * shape.head_dim, 2 * width)
    return Model(
        "t5", hidden, config.number("vocab_size"), widest, layers, merge(weights),
    )  # fmt: skip


def _bert(config: Config, model_type: str) -> Model:
    hidden = config.number("hidden_size", least=1)
    shape = split_heads(config, hidden, config.number("num_attention_heads", least=1))
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


ENCODERS: Final[dict[str, Callable[[Config, str], Model]]] = {
    "whisper": _whisper,
    "bart": _bart,
    "t5": _t5,
    "bert": _bert,
    "roberta": _bert,
    "xlm-roberta": _bert,
}
