"""The encoder of ViT, CLIP and Whisper: norm, attention, norm, two linear layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ullage.players.eager.training.architectures.rotary import join_heads, split_heads
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.attention import attend_fully
from ullage.players.eager.training.eager.module import LayerNorm, Linear, Module, Stack
from ullage.players.eager.training.eager.tensor import DType, Tensor


def gelu(x: Tensor) -> Tensor:
    """gelu in one kernel: saves its input."""
    return F.elementwise(x)


@dataclass(frozen=True, slots=True)
class EncoderShape:
    """Sizes and options of a layer.

    Attributes:
        dropout: after attention and after the linear layers.
        attention_dropout: dropout of the weights of attention.
        activation: between the linear layers.
    """

    hidden: int
    heads: int
    inner: int
    dropout: float = 0.0
    attention_dropout: float = 0.0
    qkv_bias: bool = True
    activation: Callable[[Tensor], Tensor] = gelu


class Attention(Module):
    """Attention of all tokens to all."""

    def __init__(self, arena: Arena, shape: EncoderShape, dtype: DType) -> None:
        hidden, has_bias = shape.hidden, shape.qkv_bias
        self.head_dim = hidden // shape.heads
        self.dropout = shape.attention_dropout
        self.q_proj, self.k_proj, self.v_proj = (
            Linear(arena, hidden, hidden, dtype, has_bias=has_bias) for _ in range(3)
        )
        self.o_proj = Linear(arena, hidden, hidden, dtype, has_bias=True)

    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        query = split_heads(self.q_proj(x), self.head_dim)
        key = split_heads(self.k_proj(x), self.head_dim)
        value = split_heads(self.v_proj(x), self.head_dim)
        out = attend_fully(query, key, value, mask, dropout=self.dropout, is_wide=True)
        return self.o_proj(join_heads(out))


class Layer(Module):
    """One layer, its norms before its parts."""

    def __init__(self, arena: Arena, shape: EncoderShape, dtype: DType) -> None:
        self.shape = shape
        self.attention = self.make_attention(arena, shape, dtype)
        self.before = LayerNorm(arena, shape.hidden, dtype)
        self.fc1 = Linear(arena, shape.hidden, shape.inner, dtype, has_bias=True)
        self.fc2 = Linear(arena, shape.inner, shape.hidden, dtype, has_bias=True)
        self.after = LayerNorm(arena, shape.hidden, dtype)

    def make_attention(self, arena: Arena, shape: EncoderShape, dtype: DType) -> Module:
        """Makes the module in which all tokens meet."""
        return Attention(arena, shape, dtype)

    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        residual = x
        x = F.dropout(self.attention(self.before(x), mask), self.shape.dropout)
        x = F.add(x, residual)
        residual = x
        x = self.shape.activation(self.fc1(self.after(x)))
        x = F.dropout(self.fc2(x), self.shape.dropout)
        return F.add(x, residual)


class Encoder(Module):
    """The layers."""

    def __init__(
        self,
        arena: Arena,
        count: int,
        shape: EncoderShape,
        dtype: DType,
        layer: type[Layer] = Layer,
    ) -> None:
        self.layers = Stack(arena, "encoder", count, lambda: layer(arena, shape, dtype))

    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.layers(x, mask)
