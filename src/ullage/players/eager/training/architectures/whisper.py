"""Whisper, as transformers' modeling_whisper.py has it: 30 seconds of sound, and their text."""

from __future__ import annotations

from typing import Final

from ullage.facts.families.blocks import Shape
from ullage.facts.families.config import Config
from ullage.facts.families.encoders import Half, halves_of
from ullage.log.category import Category
from ullage.players.eager.training.architectures.activations import find_activation
from ullage.players.eager.training.architectures.encoder import gelu
from ullage.players.eager.training.architectures.losses import token_loss
from ullage.players.eager.training.architectures.masks import eager_mask
from ullage.players.eager.training.architectures.model import Model, ids, parameter_dtype
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager import module as nn
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.attention import attend_fully
from ullage.players.eager.training.eager.convolution import Conv
from ullage.players.eager.training.eager.indexing import rows
from ullage.players.eager.training.eager.tensor import DType, Tensor, empty
from ullage.players.eager.training.recipe import Recipe

_STRIDE: Final = 2  # of the second convolution


class Attention(nn.Module):
    """WhisperAttention: queries are scaled before they are split, and all three are copied."""

    def __init__(self, arena: Arena, shape: Shape, dtype: DType, *, dropout: float) -> None:
        hidden, self.head_dim, self.dropout = shape.hidden, shape.head_dim, dropout
        self.k_proj = nn.Linear(arena, hidden, hidden, dtype)
        self.v_proj = nn.Linear(arena, hidden, hidden, dtype, has_bias=True)
        self.q_proj = nn.Linear(arena, hidden, hidden, dtype, has_bias=True)
        self.out_proj = nn.Linear(arena, hidden, hidden, dtype, has_bias=True)

    def __call__(
        self, x: Tensor, others: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        source = x if others is None else others
        query = self._split(F.scale(self.q_proj(x)))
        key = self._split(self.k_proj(source))
        value = self._split(self.v_proj(source))
        out = attend_fully(query, key, value, mask, dropout=self.dropout)
        out = F.contiguous(F.transpose(out, 1, 2))
        return self.out_proj(F.view(out, x.shape))

    def _split(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = F.view(x, (batch, length, width // self.head_dim, self.head_dim))
        return F.contiguous(F.transpose(heads, 1, 2))


class Layer(nn.Module):
    """WhisperEncoderLayer, WhisperDecoderLayer."""

    def __init__(self, arena: Arena, config: Config, half: Half, dtype: DType) -> None:
        shape, hidden, inner = half.shape, half.shape.hidden, half.width
        weights = config.real("attention_dropout", default=0.0)
        self.dropout = config.real("dropout", default=0.0)
        self.activation = find_activation(config, "activation_function", default="gelu")
        self.activation_dropout = config.real("activation_dropout", default=0.0)
        self.self_attn = Attention(arena, shape, dtype, dropout=weights)
        self.self_norm = nn.LayerNorm(arena, hidden, dtype)
        self.cross = self.cross_norm = None
        if half.is_decoder:
            self.cross = Attention(arena, shape, dtype, dropout=weights)
            self.cross_norm = nn.LayerNorm(arena, hidden, dtype)
        self.fc1 = nn.Linear(arena, hidden, inner, dtype, has_bias=True)
        self.fc2 = nn.Linear(arena, inner, hidden, dtype, has_bias=True)
        self.final_norm = nn.LayerNorm(arena, hidden, dtype)

    def __call__(
        self, x: Tensor, others: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        residual = x
        x = F.dropout(self.self_attn(self.self_norm(x), mask=mask), self.dropout)
        x = F.add(residual, x)
        if self.cross is not None and self.cross_norm is not None:
            residual = x
            x = F.dropout(self.cross(self.cross_norm(x), others), self.dropout)
            x = F.add(residual, x)
        residual = x
        x = self.activation(self.fc1(self.final_norm(x)))
        x = self.fc2(F.dropout(x, self.activation_dropout))
        return F.add(residual, F.dropout(x, self.dropout))


class Encoder(nn.Module):
    """WhisperEncoder: two convolutions over the spectrum, fixed positions, layers."""

    def __init__(self, arena: Arena, config: Config, half: Half, dtype: DType) -> None:
        hidden, positions = half.shape.hidden, config.number("max_source_positions")
        bins = config.number("num_mel_bins")
        self.dropout = config.real("dropout", default=0.0)
        self.conv1 = Conv(arena, bins, hidden, 3, dtype, padding=1, dimensions=1)
        self.conv2 = Conv(arena, hidden, hidden, 3, dtype, stride=_STRIDE, padding=1, dimensions=1)
        self.positions = nn.parameter(arena, positions, hidden, dtype=dtype, needs_grad=False)
        self.layers = nn.Stack(
            arena, "encoder", half.layers, lambda: Layer(arena, config, half, dtype)
        )
        self.layer_norm = nn.LayerNorm(arena, hidden, dtype)

    def __call__(self, features: Tensor) -> Tensor:
        embeds = gelu(self.conv1(features))
        embeds = gelu(self.conv2(embeds))
        embeds = F.transpose(embeds, 1, 2)
        x = F.add(embeds, self.positions.like())
        x = F.dropout(x, self.dropout)
        return self.layer_norm(self.layers(x))


class Decoder(nn.Module):
    """WhisperDecoder: learned positions."""

    def __init__(self, arena: Arena, config: Config, half: Half, dtype: DType) -> None:
        hidden = half.shape.hidden
        self.dropout = config.real("dropout", default=0.0)
        self.embed_tokens = nn.Embedding(arena, config.number("vocab_size"), hidden, dtype)
        self.positions = nn.Embedding(arena, config.number("max_target_positions"), hidden, dtype)
        self.layers = nn.Stack(
            arena, "decoder", half.layers, lambda: Layer(arena, config, half, dtype)
        )
        self.layer_norm = nn.LayerNorm(arena, hidden, dtype)

    def __call__(self, tokens: Tensor, encoded: Tensor) -> Tensor:
        embeds = self.embed_tokens(tokens)
        positions = rows(self.positions.weight, tokens.like())
        mask = eager_mask(embeds)
        x = F.dropout(F.add(embeds, positions), self.dropout)
        return self.layer_norm(self.layers(x, encoded, mask))


class Whisper(Model):
    """WhisperForConditionalGeneration."""

    def __init__(self, arena: Arena, config: Config, recipe: Recipe) -> None:
        dtype = parameter_dtype(recipe)
        self.frames = _STRIDE * config.number("max_source_positions")
        self.bins = config.number("num_mel_bins")
        self.dtype = dtype
        self.longest = config.number("max_target_positions")
        before, behind = halves_of(config)
        self.encoder = Encoder(arena, config, before, dtype)
        self.decoder = Decoder(arena, config, behind, dtype)
        words = self.decoder.embed_tokens.weight
        vocab, hidden = words.shape
        self.proj_out = nn.LMHead(arena, hidden, vocab, dtype, weight=words)
        self.stacks = (self.encoder.layers, self.decoder.layers)

    def inputs(self, arena: Arena, recipe: Recipe) -> tuple[Tensor, ...]:
        tokens = ids(arena, recipe, self.longest)
        shape = (recipe.batch, self.bins, self.frames)
        return empty(arena, shape, self.dtype, Category.INPUT), tokens

    def __call__(self, *inputs: Tensor) -> Tensor:
        features, labels = inputs
        shifted = labels.like()
        x = self.decoder(shifted, self.encoder(features))
        return token_loss(self.proj_out(x), labels)
