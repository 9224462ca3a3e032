"""Models with an encoder: Whisper, BART and T5 with a decoder behind it, BERT and RoBERTa without.

Source: the modeling files of transformers 5.19. Training builds its modules of the same sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ullage.facts.families.blocks import (
    Shape,
    attention,
    dense,
    linear,
    norm,
    split_heads,
    vocabulary,
)
from ullage.facts.families.config import Config
from ullage.facts.families.layers import (
    Attention,
    Cross,
    Encoder,
    Layer,
    Model,
    Part,
    Weight,
    merge,
)


class Half(NamedTuple):
    """An encoder or a decoder.

    Attributes:
        layers: how many.
        shape: of their attention.
        width: of their MLP.
        is_gated: the MLP has three matrices, not two.
        is_decoder: it has attention to the encoder's output, too.
    """

    layers: int
    shape: Shape
    width: int
    is_gated: bool = False
    is_decoder: bool = False


def halves_of(config: Config) -> tuple[Half, ...]:
    """Sizes of the encoder, and of the decoder if there is one."""
    if config.model_type in ("whisper", "bart"):
        return tuple(_half(config, side) for side in ("encoder", "decoder"))
    if config.model_type == "t5":
        heads, width = config.number("num_heads", least=1), config.number("d_ff")
        shape = Shape(config.number("d_model", least=1), heads, heads, config.number("d_kv"))
        gated = config.text("feed_forward_proj").startswith("gated-")
        before = config.number("num_layers", least=1)
        behind = config.number("num_decoder_layers", default=before)
        encoder = Half(before, shape, width, gated)
        return encoder, encoder._replace(layers=behind, is_decoder=True)
    shape = split_heads(
        config, config.number("hidden_size", least=1), config.number("num_attention_heads", least=1)
    )
    return (Half(config.number("num_hidden_layers"), shape, config.number("intermediate_size")),)


def _half(config: Config, side: str) -> Half:
    hidden, heads = config.number("d_model", least=1), f"{side}_attention_heads"
    shape = split_heads(config, hidden, config.number(heads, least=1))
    layers, width = config.number(f"{side}_layers", least=1), config.number(f"{side}_ffn_dim")
    return Half(layers, shape, width, is_decoder=side == "decoder")


def _model(
    config: Config, weights: Sequence[Weight], context: int | None, positions: int | None = None,
    *, key_bias: bool | None = True,
) -> Model:  # fmt: skip
    # positions: of the encoder's output. key_bias: keys have biases as all others do; None: there
    # are no biases, and norms are without them.
    halves, has_bias = halves_of(config), key_bias is not None
    own, layers, widest = [*weights], list[Layer](), 0
    for half in halves:
        shape, wide = half.shape, half.shape.heads * half.shape.head_dim
        for _ in range(half.layers * (1 + half.is_decoder)):
            own += attention(shape, out_bias=has_bias)
            if key_bias is not None:
                own.append(
                    Weight(Part.ATTENTION, wide, count=2 + key_bias, most_shards=shape.heads)
                )
            own.append(norm(shape.hidden, has_bias=has_bias))
        for _ in range(half.layers):
            own += dense(shape.hidden, half.width, is_gated=half.is_gated, has_bias=has_bias)
            own.append(norm(shape.hidden, has_bias=has_bias))
        widest = max(widest, 3 * wide, (1 + half.is_gated) * half.width)
        cached: tuple[Layer, ...] = (Encoder(shape.heads, shape.head_dim),)
        if half.is_decoder:
            cross = Cross(shape.heads, shape.head_dim, positions)
            cached = Attention(shape.heads, shape.heads, shape.head_dim), cross
        layers += cached * half.layers
    hidden, vocab = halves[0].shape.hidden, config.number("vocab_size")
    return Model(
        config.model_type, hidden, vocab, widest, tuple(layers), merge(own), context=context
    )


def _whisper(config: Config) -> Model:
    hidden, bins = config.number("d_model", least=1), config.number("num_mel_bins")
    frames, context = config.number("max_source_positions"), config.number("max_target_positions")
    weights = [*vocabulary(config, hidden, is_tied=True)]
    weights += [Weight(Part.MLP, hidden, 3 * bins), Weight(Part.MLP, hidden, 3 * hidden)]
    weights += [Weight(Part.MLP, hidden, count=2), norm(hidden, has_bias=True, count=2)]
    weights.append(Weight(Part.EMBEDDING, frames + context, hidden, most_shards=1))
    return _model(config, weights, context, frames, key_bias=False)


def _bart(config: Config) -> Model:
    hidden, context = config.number("d_model", least=1), config.number("max_position_embeddings")
    weights = [*vocabulary(config, hidden, is_tied=True), norm(hidden, has_bias=True, count=2)]
    # The first two positions stand for padding.
    weights.append(Weight(Part.EMBEDDING, context + 2, hidden, count=2, most_shards=1))
    return _model(config, weights, context)


def _t5(config: Config) -> Model:
    hidden, heads = config.number("d_model", least=1), config.number("num_heads", least=1)
    buckets = config.number("relative_attention_num_buckets")
    weights = [*vocabulary(config, hidden, is_tied=True), norm(hidden, count=2)]
    weights.append(Weight(Part.ATTENTION, buckets, heads, count=2, most_shards=heads))
    return _model(config, weights, None, key_bias=None)


def _bert(config: Config) -> Model:
    hidden, vocab = config.number("hidden_size", least=1), config.number("vocab_size")
    context = config.number("max_position_embeddings")
    rows = context + config.number("type_vocab_size")
    weights = [Weight(Part.EMBEDDING, vocab, hidden), norm(hidden, has_bias=True)]
    weights.append(Weight(Part.EMBEDDING, rows, hidden, most_shards=1))
    weights += [linear(Part.HEAD, hidden, hidden, None), Weight(Part.HEAD, hidden, most_shards=1)]
    return _model(config, weights, context)


ENCODERS: Final[dict[str, Callable[[Config], Model]]] = {
    "whisper": _whisper,
    "bart": _bart,
    "t5": _t5,
    **dict.fromkeys(("bert", "roberta", "xlm-roberta"), _bert),
}
