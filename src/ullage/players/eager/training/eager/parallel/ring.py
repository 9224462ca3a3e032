"""Attention over a sequence that ranks have shared out (context parallelism).

As torch.distributed.tensor.experimental.context_parallel has it: each rank has two chunks of the
sequence, one from its beginning and one from its end, so that all have equal work. Keys and values
of all ranks are gathered at once; the queries meet those of one rank after the other, and what they
find is merged in float32. Backward gathers again, and hands the gradients of keys and values on
from rank to rank. Source: _templated_ring_attention, _SDPAMerger and
_templated_ring_attention_backward of torch 2.15, which this follows line by line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ullage.players.eager.training.eager.attention import (
    SEEDS,
    Heads,
    find_kernel,
    sums_shape,
    take_scratch,
)
from ullage.players.eager.training.eager.autocast import lower, to
from ullage.players.eager.training.eager.autograd import Gradients, connect, keep, record, remember
from ullage.players.eager.training.eager.machine import Kernel
from ullage.players.eager.training.eager.shapes import contiguous
from ullage.players.eager.training.eager.tensor import FLOAT32, INT64, DType, Tensor
from ullage.players.eager.training.layout import Ring


def attend_in_ring(
    query: Tensor, key: Tensor, value: Tensor, ring: Ring, *, dropout: float = 0.0
) -> Tensor:
    """Causal attention; queries, keys and values (batch, heads, length, head_dim) are this rank's
    part of the sequence.
    """
    value, key, query = lower(value), lower(key), lower(query)
    way = _Way(*find_kernel(query, key, value, dropout=dropout), ring)
    arena = query.arena

    def rule(gradient: Tensor, saved: Sequence[Tensor]) -> Gradients:
        return _backward(gradient, saved, way)

    node = record((query, key, value), rule, query, key, value)
    tensors: list[Tensor] = []

    def run() -> Tensor:
        tensors.extend(_forward(query, key, value, way))
        return tensors.pop(0)

    with arena.recording(is_on=False):
        out, sums = remember(run, arena), remember(tensors.pop, arena)
    if node is not None:
        keep(node, out, sums, *(query.like((size,), INT64) for size in SEEDS[way.kernel]))
    return connect(out, node)


class _Way(NamedTuple):
    """How attention is done: its sizes where all is this rank's, the kernel, the ranks."""

    heads: Heads
    kernel: Kernel
    ring: Ring

    def seen(self, step: int) -> Heads:
        if not step:
            return self.heads
        if step <= self.ring.rank:
            return replace(self.heads, kv_length=self.heads.kv_length // 2)
        return replace(self.heads, length=self.heads.length // 2)


def _forward(query: Tensor, key: Tensor, value: Tensor, way: _Way) -> tuple[Tensor, Tensor]:
    """The values that the queries find, and the logarithms of their rows' sums."""
    _, kernel, ring = way
    copies = [contiguous(key), contiguous(value)]
    sent = _join(key, value)
    gathered = sent.like((ring.ranks, *sent.shape))
    out, sums = _run(query, way.heads, kernel)
    merged = to(out, FLOAT32)
    for step in range(1, ring.ranks):
        del sent
        sent = _join(key, value)
        copies.clear()
        out, of_block = _run(query, way.seen(step), kernel)
        block = to(out, FLOAT32)
        change = block.like()
        product = block.like()
        del change
        update = block.like()
        del product
        merged = update if step <= ring.rank else merged.like(merged.shape)  # else its second half
        sums = sums.like()
        del block, update, of_block
    output = to(merged, query.dtype)
    del merged, gathered, sent
    return output, sums


def _backward(gradient: Tensor, saved: Sequence[Tensor], way: _Way) -> Gradients:
    query, key, value, *_ = saved
    _, kernel, ring = way
    of_query, of_key, of_value = (tensor.like(dtype=FLOAT32) for tensor in (query, key, value))
    copies = [contiguous(key), contiguous(value)]
    sent = _join(key, value)
    gathered = sent.like((ring.ranks, *sent.shape))
    handed = received = gathered
    backward: list[Tensor] = []
    for step in range(ring.ranks):
        if step:
            sent = _join(key, value)
            copies.clear()
        backward = _run_backward(gradient, query, way.seen(step), kernel)
        if step:  # what was handed on has arrived elsewhere, and theirs is here
            handed = received
            of_key, of_value = (received.alias(tensor.shape) for tensor in (key, value))
        if 0 < step <= ring.rank:  # into the first half
            of_key, of_value = of_key.like(), of_value.like()
        flat = [contiguous(of_key), contiguous(of_value)]
        handed = _join(key, value, FLOAT32)
        del flat
        received = handed.like()
        if step > ring.rank:  # into the second half
            of_query = of_query.like(of_query.shape)
    query_gradient = to(of_query, query.dtype)
    del of_query
    joined = to(received, key.dtype)
    del handed, received, of_key, of_value, sent, backward, gathered
    return [query_gradient, joined.alias(key.shape), joined.alias(value.shape)]


def _run(query: Tensor, heads: Heads, kernel: Kernel) -> tuple[Tensor, Tensor]:
    """A kernel's output, laid out like the queries, and its sums."""
    out = query.like((heads.batch, heads.count, heads.length, heads.value_width))
    out.lay_out(is_permuted=query.is_permuted or kernel is Kernel.EFFICIENT)
    return out, query.like(sums_shape(heads, kernel), FLOAT32)


def _run_backward(gradient: Tensor, query: Tensor, heads: Heads, kernel: Kernel) -> list[Tensor]:
    """A kernel's gradients of queries, keys and values."""
    shapes = (
        (heads.batch, heads.count, heads.length, heads.width),
        (heads.batch, heads.kv_count, heads.kv_length, heads.width),
        (heads.batch, heads.kv_count, heads.kv_length, heads.value_width),
    )
    copies = [query.like(shape) for shape in shapes]
    take_scratch(kernel, gradient, heads)
    return copies


def _join(key: Tensor, value: Tensor, dtype: DType | None = None) -> Tensor:
    """Keys and values one after the other, as they are sent."""
    return key.like((key.numel + value.numel,), dtype)
