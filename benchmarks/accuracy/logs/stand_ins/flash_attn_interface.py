"""Stands for FlashAttention 3, which has no wheel: allocates what it allocates, computes nothing.

The tensors and their sizes are those of `mha_fwd` and `mha_bwd` in hopper/flash_api.cpp of
Dao-AILab/flash-attention on a GPU of capability 9.0, for batches of equal length, heads of 64 and
one split; the operations are cut as in its hopper/flash_attn_interface.py.
"""

from typing import Any

import torch
from torch import Tensor

_HEAD, _BLOCK_M, _BLOCK_N = 64, 128, 128


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
    """The output of attention, all zeros or what was there before."""
    if q.shape[-1] != _HEAD:
        raise ValueError(f"the stand-in knows heads of {_HEAD}, and these have {q.shape[-1]}")
    out, _lse, _out_accum, _lse_accum = _forward(q, k, v, causal)
    return out


def _numbers(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def _round(length: int, block: int) -> int:
    return -(-length // block) * block


@torch.library.custom_op("ullage_stand_in::fa3_forward", mutates_args=(), device_types="cuda")
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,  # noqa: FBT001 - an operation of torch's
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v = (tensor.contiguous() for tensor in (q, k, v))
    batch, length, heads, _ = q.shape
    out = torch.empty_like(q)
    lse = _numbers(q, batch, heads, length)
    if causal:  # the scheduler counts its tiles
        torch.empty(1, dtype=torch.int32, device=q.device)
    return out, lse, torch.tensor([], device=q.device), torch.tensor([], device=q.device)


@_forward.register_fake
def _forward_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,  # noqa: FBT001
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, length, heads, _ = q.shape
    nothing = torch.tensor([], device=q.device)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    return out, _numbers(q, batch, heads, length), nothing, nothing.clone()


@torch.library.custom_op(
    "ullage_stand_in::fa3_backward", mutates_args=("dq", "dk", "dv"), device_types="cuda"
)
def _backward(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    dq: Tensor, dk: Tensor, dv: Tensor,
) -> Tensor:  # fmt: skip
    dy, q, k, v, out = (tensor.contiguous() for tensor in (dy, q, k, v, out))
    batch, length, heads, size = q.shape
    length_k, heads_k = k.shape[1:3]
    rows, rows_k = _round(length, _BLOCK_M), _round(length_k, _BLOCK_N)
    softmax_d = _numbers(q, batch, heads, rows)
    buffers = [_numbers(q, batch, heads, rows), _numbers(q, batch, heads, rows * size)]
    if heads_k != heads:
        shape = (batch, heads_k, rows_k * size)
        buffers += [torch.zeros(shape, dtype=torch.float32, device=q.device) for _ in range(2)]
    semaphores = (rows // _BLOCK_M, batch, heads)
    buffers.append(torch.empty(semaphores, dtype=torch.int32, device=q.device))
    return softmax_d


@_backward.register_fake
def _backward_fake(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    dq: Tensor, dk: Tensor, dv: Tensor,
) -> Tensor:  # fmt: skip
    batch, length, heads, _ = q.shape
    return _numbers(q, batch, heads, _round(length, _BLOCK_M))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, _causal = inputs
    out, lse, _, _ = output
    ctx.save_for_backward(q, k, v, out, lse)


def _differentiate(ctx: Any, dy: Tensor, *_others: Any) -> tuple[Any, ...]:
    q, k, v, out, lse = ctx.saved_tensors
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    _backward(dy, q, k, v, out, lse, dq, dk, dv)
    return dq, dk, dv, None


_forward.register_autograd(_differentiate, setup_context=_save)
