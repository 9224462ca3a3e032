"""torch.autocast: which dtype an operator works in.

Source: aten/src/ATen/autocast_mode.h (the lists) and autocast_mode.cpp (cached_cast).
"""

from __future__ import annotations

from ullage.log.category import Category
from ullage.players.eager.training.eager.autograd import connect, record
from ullage.players.eager.training.eager.tensor import FLOAT32, DType, Tensor


def to(x: Tensor, dtype: DType) -> Tensor:
    """x.to(dtype): the same tensor where it is of that dtype."""
    if x.dtype is dtype:
        return x
    before = x.dtype
    node = record((x,), lambda gradient, _: [gradient.like(dtype=before)])
    out = connect(x.like(dtype=dtype), node)
    if x.arena.is_compiled:
        out.source, out.is_recomputed = x.detach(), x.is_recomputed
    return out


def lower(x: Tensor) -> Tensor:
    """An input of an operator of the list lower_precision_fp (linear, matmul, conv, sdpa): in
    autocast's dtype. A parameter that is trained is cast once, until autocast ends.
    """
    arena = x.arena
    dtype = arena.autocast
    if dtype is None or x.dtype is dtype or not x.dtype.is_floating:
        return x
    index = x.storage.index
    is_cached = x.needs_grad and x.dtype is FLOAT32 and x.node is None
    if not is_cached or arena.log.categories[index] is not Category.PARAMETER:
        return to(x, dtype)
    if index not in arena.casts:
        arena.casts[index] = (arena.open_section, to(x, dtype))
    cast: Tensor = arena.casts[index][1]
    return cast


def raise_(x: Tensor) -> Tensor:
    """An input of an operator of the list fp32 (softmax, layer_norm, losses, pow, ...)."""
    return to(x, FLOAT32) if x.arena.autocast is not None and x.dtype.is_floating else x
