"""VisionTransformer of torchvision, whose attention is nn.MultiheadAttention."""

from __future__ import annotations

from typing import ClassVar

from ullage.players.eager.training.architectures.encoder import EncoderShape, Layer
from ullage.players.eager.training.architectures.images.vit import ViT
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.attention import attend, find_kernel
from ullage.players.eager.training.eager.machine import Kernel
from ullage.players.eager.training.eager.module import Linear, Module, parameter
from ullage.players.eager.training.eager.shapes import view_any
from ullage.players.eager.training.eager.tensor import DType, Tensor


class MultiheadAttention(Module):
    """nn.MultiheadAttention(batch_first=True) of one tensor: tokens come first inside, queries,
    keys and values from one matrix are copied into order, and so is what is found.

    Source: torch/nn/functional.py (multi_head_attention_forward, _in_projection_packed).
    """

    def __init__(self, arena: Arena, shape: EncoderShape, dtype: DType) -> None:
        hidden = shape.hidden
        self.heads = shape.heads
        self.dropout = shape.attention_dropout
        self.in_weight = parameter(arena, 3 * hidden, hidden, dtype=dtype)
        self.in_bias = parameter(arena, 3 * hidden, dtype=dtype)
        self.out_proj = Linear(arena, hidden, hidden, dtype, has_bias=True)

    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        del mask
        batch, length, hidden = x.shape
        x = F.transpose(x, 0, 1)
        joined = F.linear(x, self.in_weight, self.in_bias)
        parts = F.contiguous(_unpack(joined))
        del joined
        query, key, value = (self._head(part) for part in F.split(parts, (1, 1, 1), 0))
        del parts
        _, kernel = find_kernel(query, key, value, dropout=self.dropout)
        out = attend(query, key, value, dropout=self.dropout)
        out = view_any(out, (length, batch, self.heads, hidden // self.heads))
        is_in_order = kernel is not Kernel.EFFICIENT  # others lay it out like the queries
        out.is_dense, out.is_permuted = is_in_order, not is_in_order
        flat = F.view(F.contiguous(out), (batch * length, hidden))
        out = F.view(self.out_proj(flat), (length, batch, hidden))
        return F.transpose(out, 0, 1)

    def _head(self, x: Tensor) -> Tensor:
        """(1, length, batch, width) as (batch, heads, length, head_dim), seen as it lies."""
        _, length, batch, hidden = x.shape
        out = view_any(x, (batch, self.heads, length, hidden // self.heads))
        out.is_dense, out.is_permuted = False, True
        return out


def _unpack(x: Tensor) -> Tensor:
    """(length, batch, 3 width) as (3, length, batch, width), seen as it lies."""
    length, batch, width = x.shape
    out = view_any(x, (3, length, batch, width // 3))
    out.is_dense, out.is_permuted = False, True
    return out


class TorchvisionLayer(Layer):
    """EncoderBlock."""

    def make_attention(self, arena: Arena, shape: EncoderShape, dtype: DType) -> Module:
        return MultiheadAttention(arena, shape, dtype)


class TorchvisionViT(ViT):
    """VisionTransformer."""

    layer: ClassVar[type[Layer]] = TorchvisionLayer
