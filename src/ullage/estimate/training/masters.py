"""Mixed precision in which the optimizer has parameters of its own, in float32: as Megatron,
DeepSpeed and Apex have it.

With Adam that is 16 bytes a parameter; 18 where gradients are summed in float32, 20 where they are
there in 16 bits as well.
"""

from __future__ import annotations

from itertools import groupby

from ullage.estimate.training.eager.arena import Arena
from ullage.estimate.training.eager.dtype import FLOAT32
from ullage.estimate.training.eager.tensor import Tensor, empty
from ullage.trace.category import Category


def make_masters(arena: Arena, trained: list[tuple[Tensor, int]]) -> list[tuple[Tensor, int]]:
    """A copy in float32 of each parameter that is trained, which the optimizer steps instead."""
    masters = []
    for count, rows in groupby(trained, key=lambda row: row[1]):
        with arena.section("masters", "build", count):
            for tensor, _ in rows:
                master = empty(arena, tensor.shape, FLOAT32, Category.OPTIMIZER_STATE)
                master.needs_grad = True
                arena.log.owners[master.storage.index] = tensor.storage.index
                masters.append((master, count))
    return masters


def sum_in_float32(arena: Arena, parameters: list[tuple[Tensor, int]]) -> list[Tensor]:
    """Gradients in float32, which stay, and into which those of the parameters are summed as soon
    as they are there: main_grad of Megatron.
    """
    gradients = []
    for count, rows in groupby(parameters, key=lambda row: row[1]):
        with arena.section("gradients", "build", count):
            gradients += [
                empty(arena, tensor.shape, FLOAT32, Category.GRADIENT)
                for tensor, _ in rows
                if tensor.needs_grad
            ]
    arena.steps_with = lambda _: None
    return gradients
