"""Heads of attention, and the rotation that encodes positions (RoPE)."""

from __future__ import annotations

from ullage.facts.families.config import Config
from ullage.log.category import Category
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.tensor import FLOAT32, DType, Tensor, empty

Table = tuple[Tensor, Tensor]  # cosines and sines, (1, 1, length, width) each


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """(batch, length, width) as (batch, heads, length, head_dim)."""
    batch, length, width = x.shape
    return F.transpose(F.view(x, (batch, length, width // head_dim, head_dim)), 1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(batch, heads, length, head_dim) as (batch, length, width)."""
    batch, heads, length, head_dim = x.shape
    return F.reshape(F.transpose(x, 1, 2), (batch, length, heads * head_dim))


def rotary_table(
    like: Tensor, length: int, width: int, dtype: DType | None = None, *, batch: int = 1
) -> Table:
    """Cosines and sines for the positions of a sample: computed in float32, kept in a dtype."""
    shape = (batch, 1, length, width)
    frequencies = like.like(shape, FLOAT32)
    cos, sin = (empty(like.arena, shape, dtype or like.dtype) for _ in range(2))
    del frequencies
    return cos, sin


def frequencies(arena: Arena, width: int) -> list[Tensor]:
    """The buffers inv_freq and original_inv_freq, from which a table is computed."""
    return [empty(arena, (width // 2,), FLOAT32, Category.BUFFER) for _ in range(2)]


def rotated_share(config: Config, default: float) -> float:
    """Which share of a head is rotated: an old field of its own, or a part of rope_parameters."""
    names = "partial_rotary_factor", "rotary_pct"
    if not config.has(*names) and config.has("rope_parameters"):
        config = config.part("rope_parameters")
    share: float = config.real(*names, default=default)
    return share


def rotate_half(x: Tensor) -> Tensor:
    """The second half of the last dimension, negated, before the first."""
    half = x.shape[-1] // 2
    first, second = F.narrow(x, -1, half), F.narrow(x, -1, half)
    return F.cat((F.neg(second), first), -1)


def rotate(x: Tensor, table: Table) -> Tensor:
    """apply_rotary_pos_emb, of one of the two."""
    cos, sin = table
    return F.add(F.mul(x, cos), F.mul(rotate_half(x), sin))


def rotate_part(x: Tensor, table: Table) -> Tensor:
    """apply_rotary_pos_emb of a head's first elements; the rest, be it empty, is joined on."""
    width, head_dim = table[0].shape[-1], x.shape[-1]
    turned, rest = F.narrow(x, -1, width), F.narrow(x, -1, head_dim - width)
    turned = rotate(turned, table)
    return F.cat((turned, rest), -1)
