"""The ends of a part of a model: where a stage of a pipeline gets and hands on its activations, and
the head whose vocabulary is divided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ullage.estimate.eager.arena import Storage
from ullage.estimate.eager.autograd import connect, record
from ullage.estimate.eager.dtype import DType
from ullage.estimate.eager.functional import linear
from ullage.estimate.eager.module import Linear, Module, parameter
from ullage.estimate.eager.tensor import Tensor, empty
from ullage.trace.category import Category

__all__ = ["DividedHead", "Incoming", "KeptHead", "Outgoing", "StageOutput", "run_stage"]


class StageOutput(Exception):
    """A stage is through; what it hands on is `output`."""

    def __init__(self, output: Tensor) -> None:
        super().__init__("a stage of the pipeline is through")
        self.output = output


def run_stage(model: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Tensor:
    """The loss, or what a stage that is not the last hands on."""
    try:
        return model(*inputs)
    except StageOutput as through:
        return through.output


class Incoming(Module):
    """Instead of an embedding: what the stage before has sent, one buffer for each micro-batch."""

    def __init__(self, width: int, dtype: DType) -> None:
        self.width = width
        self.dtype = dtype

    def __call__(self, tokens: Tensor) -> Tensor:
        shape = (*tokens.shape, self.width)
        received = empty(tokens.arena, shape, self.dtype, Category.COMMUNICATION)
        received.needs_grad = True
        return received


class Outgoing(Module):
    """Instead of what follows the last layer of a stage that is not the last."""

    def __call__(self, x: Tensor) -> Tensor:
        raise StageOutput(x)


class KeptHead(Module):
    """The head of a last stage, which torch.distributed.pipelining keeps the logits of for every
    micro-batch of the step, to merge them; the graph behind each holds what the stage received.
    """

    def __init__(self, head: Any, micro_batches: int) -> None:  # noqa: ANN401
        self.head = head
        self.micro_batches = micro_batches
        self.kept: list[Storage] = []

    def __call__(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x)
        if not self.kept:
            take = logits.arena.take
            self.kept = [
                take(self.micro_batches * logits.nbytes, Category.ACTIVATION),
                take(self.micro_batches * x.nbytes, Category.COMMUNICATION),
            ]
        return logits


class DividedHead(Module):
    """A head of which each rank has a part of the vocabulary; the logits are gathered.

    As ColwiseParallel(output_layouts=Replicate()) has it: the gathered parts, then one tensor of
    them in order.
    """

    def __init__(self, head: Linear, ranks: int) -> None:
        rows, width = head.weight.shape
        self.ranks = ranks
        self.weight = parameter(
            head.weight.arena, -(-rows // ranks), width, dtype=head.weight.dtype
        )

    def __call__(self, x: Tensor) -> Tensor:
        local = linear(x, self.weight)
        shape = local.shape
        node = record((local,), lambda gradient, _: [gradient.like(shape)])
        whole = (*shape[:-1], shape[-1] * self.ranks)
        gathered = local.like(whole)
        out = gathered.like()
        return connect(out, node)
