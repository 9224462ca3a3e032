"""T5, as transformers' modeling_t5.py has it: an encoder and a decoder whose attention has a
learned bias for each distance, which sdpa gets as a mask.
"""

from __future__ import annotations

from ullage.facts.families.blocks import Shape
from ullage.facts.families.config import Config
from ullage.facts.families.encoders import Half, halves_of
from ullage.players.eager.training.architectures import norms
from ullage.players.eager.training.architectures.activations import find_activation
from ullage.players.eager.training.architectures.losses import token_loss
from ullage.players.eager.training.architectures.masks import eager_mask
from ullage.players.eager.training.architectures.model import LanguageModel, parameter_dtype
from ullage.players.eager.training.architectures.rotary import join_heads, split_heads
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager import module as nn
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.attention import attend, attend_eagerly
from ullage.players.eager.training.eager.indexing import choose
from ullage.players.eager.training.eager.reductions import mean
from ullage.players.eager.training.eager.shapes import view_any
from ullage.players.eager.training.eager.tensor import BOOL, FLOAT32, INT64, DType, Tensor, empty
from ullage.players.eager.training.recipe import Recipe


class Norm(norms.Norm):
    """T5LayerNorm: the deviation in float32, and the product with it."""

    def __call__(self, x: Tensor) -> Tensor:
        variance = mean(F.pow2(F.to(x, FLOAT32)))
        x = F.mul(x, F.rsqrt(F.shift(variance)))
        return F.mul(self.weight, F.to(x, self.weight.dtype))


class Attention(nn.Module):
    """T5Attention, its norm and its dropout: T5LayerSelfAttention and T5LayerCrossAttention."""

    def __init__(
        self, arena: Arena, config: Config, shape: Shape, dtype: DType, *, is_causal: bool
    ) -> None:
        hidden, self.head_dim = shape.hidden, shape.head_dim
        inner = shape.heads * self.head_dim
        self.is_causal = is_causal
        self.dropout = config.real("dropout_rate", default=0.1)
        self.q, self.k, self.v = (nn.Linear(arena, hidden, inner, dtype) for _ in range(3))
        self.o = nn.Linear(arena, inner, hidden, dtype)
        self.norm = Norm(arena, hidden, dtype)

    def __call__(
        self, x: Tensor, bias: Tensor, others: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        out = self.norm(x)
        source = out if others is None else others
        query = split_heads(self.q(out), self.head_dim)
        key = split_heads(self.k(source), self.head_dim)
        value = split_heads(self.v(source), self.head_dim)
        if x.arena.is_attention_eager:
            out = attend_eagerly(
                query, key, value, mask, bias=bias, dropout=self.dropout, is_wide=False
            )
        else:
            if self.is_causal:
                bias = choose(empty(x.arena, bias.shape[-2:], BOOL), bias)
            bias = F.contiguous(bias)
            out = attend(query, key, value, bias, dropout=self.dropout)
        out = join_heads(out)
        del query, key, value, bias
        return F.add(x, F.dropout(self.o(out), self.dropout))


class FeedForward(nn.Module):
    """T5LayerFF: of two linear layers, or gated of three."""

    def __init__(self, arena: Arena, config: Config, half: Half, dtype: DType) -> None:
        hidden, inner = half.shape.hidden, half.width
        kind = config.text("feed_forward_proj")
        function = kind.removeprefix("gated-")
        if kind == "gated-gelu":
            function = "gelu_new"
        activation = Config(config.name, {"feed_forward_proj": function})
        self.activation = find_activation(activation, "feed_forward_proj", default="relu")
        self.dropout = config.real("dropout_rate", default=0.1)
        self.wi = nn.Linear(arena, hidden, inner, dtype)
        self.gate = None
        if half.is_gated:
            self.adapted = {"wi": ("wi_0",), "gate": ("wi_1",)}
            self.gate = nn.Linear(arena, hidden, inner, dtype)
        self.wo = nn.Linear(arena, inner, hidden, dtype)
        self.norm = Norm(arena, hidden, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return F.add(x, F.dropout(self._between(self.norm(x)), self.dropout))

    def _between(self, x: Tensor) -> Tensor:
        inner = self.activation(self.wi(x))
        if self.gate is not None:
            inner = F.mul(inner, self.gate(x))
        inner = F.dropout(inner, self.dropout)
        return self.wo(inner)


class Block(nn.Module):
    """T5Block."""

    def __init__(self, arena: Arena, config: Config, half: Half, dtype: DType) -> None:
        shape = half.shape
        self.attention = Attention(arena, config, shape, dtype, is_causal=half.is_decoder)
        self.cross = None
        if half.is_decoder:
            self.cross = Attention(arena, config, shape, dtype, is_causal=False)
        self.feed_forward = FeedForward(arena, config, half, dtype)

    def __call__(
        self,
        x: Tensor,
        bias: Tensor,
        cross_bias: Tensor | None,
        others: Tensor | None,
        mask: Tensor | None,
    ) -> Tensor:
        x = self.attention(x, bias, mask=mask)
        if self.cross is not None and cross_bias is not None:
            x = self.cross(x, cross_bias, others)
        return self.feed_forward(x)


class Side(nn.Module):
    """T5Stack: the encoder or the decoder; the first block's bias serves all."""

    def __init__(
        self, arena: Arena, config: Config, half: Half, dtype: DType, words: nn.Embedding
    ) -> None:
        self.words = words
        self.heads = half.shape.heads
        self.dropout = config.real("dropout_rate", default=0.1)
        buckets = config.number("relative_attention_num_buckets")
        self.distances = nn.Embedding(arena, buckets, self.heads, dtype)
        self.blocks = nn.Stack(
            arena,
            "decoder" if half.is_decoder else "encoder",
            half.layers,
            lambda: Block(arena, config, half, dtype),
        )
        self.norm = Norm(arena, half.shape.hidden, dtype)

    def __call__(self, tokens: Tensor, others: Tensor | None = None) -> Tensor:
        embedded = self.words(tokens)
        mask = None if others is None else eager_mask(embedded)
        x = F.dropout(embedded, self.dropout)
        length = tokens.shape[1]
        bias = self.distances(empty(x.arena, (length, length), INT64))
        bias = view_any(F.transpose(bias, 0, 2), (1, self.heads, length, length))
        cross_bias = None
        if others is not None:
            shape = (1, self.heads, length, others.shape[1])
            cross_bias = empty(x.arena, shape, x.dtype)
        x = self.norm(self.blocks(x, bias, cross_bias, others, mask))
        return F.dropout(x, self.dropout)


class T5(LanguageModel):
    """T5ForConditionalGeneration: source and target are equally long."""

    def __init__(self, arena: Arena, config: Config, recipe: Recipe) -> None:
        dtype = parameter_dtype(recipe)
        hidden, vocab = config.number("d_model"), config.number("vocab_size")
        self.shared = nn.Embedding(arena, vocab, hidden, dtype)
        before, behind = halves_of(config)
        self.encoder = Side(arena, config, before, dtype, self.shared)
        self.decoder = Side(arena, config, behind, dtype, self.shared)
        # transformers ties the head whatever the field says, and takes "no" for: do not scale.
        self.is_scaled = config.flag("tie_word_embeddings", default=True)
        self.lm_head = nn.LMHead(arena, hidden, vocab, dtype, weight=self.shared.weight)
        self.stacks = (self.encoder.blocks, self.decoder.blocks)

    def __call__(self, *inputs: Tensor) -> Tensor:
        tokens, labels = inputs
        encoded = self.encoder(tokens)
        x = self.decoder(labels.like(), encoded)
        if self.is_scaled:
            x = F.scale(x)
        return token_loss(self.lm_head(x), labels)
