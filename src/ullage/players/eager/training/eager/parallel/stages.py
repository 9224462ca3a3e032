"""The ends of a part of a model: where a stage of a pipeline receives and sends activations,
and the head whose vocabulary is divided.
"""

from __future__ import annotations

from typing import Any

from ullage.log.category import Category
from ullage.players.eager.training.eager.arena import Arena, Storage
from ullage.players.eager.training.eager.autograd import connect, record
from ullage.players.eager.training.eager.dtype import DType
from ullage.players.eager.training.eager.functional import linear
from ullage.players.eager.training.eager.kernels import Kind, collect, launch, paused
from ullage.players.eager.training.eager.module import Linear, Module, parameter
from ullage.players.eager.training.eager.parallel.sequence import gather, sum_gradients
from ullage.players.eager.training.eager.tensor import Tensor, empty


class Incoming(Module):
    """Instead of an embedding: what the stage before has sent, one buffer for each micro-batch.

    Attributes:
        parts: ranks that each have a part of the sequence.
        kept: what was received, where it outlives its pass; None: it does not.
    """

    kept: list[Storage] | None = None

    def __init__(self, width: int, dtype: DType, parts: int = 1) -> None:
        self.width = width
        self.dtype = dtype
        self.parts = parts

    def __call__(self, tokens: Tensor) -> Tensor:
        batch, length = tokens.shape
        shape = (batch, length // self.parts, self.width)
        received = empty(tokens.arena, shape, self.dtype, Category.COMMUNICATION)
        received.needs_grad = True
        if self.kept is not None:
            self.kept.append(received.storage)
        return received


class KeptHead(Module):
    """The head of a last stage, which torch.distributed.pipelining keeps the logits of for every
    micro-batch of the step, to merge them; the graph behind each holds what the stage received.

    unplayed: micro-batches of the step that are not played; theirs are there from the first on.
    """

    def __init__(self, head: Any, incoming: Incoming, unplayed: int) -> None:  # noqa: ANN401
        self.head = head
        self.unplayed = unplayed
        self.logits_bytes = 0
        self.kept = incoming.kept = []

    def __call__(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x)
        take = logits.arena.take
        if len(self.kept) == 1 and self.unplayed:
            self.kept += [
                take(self.unplayed * logits.nbytes, Category.ACTIVATION),
                take(self.unplayed * x.nbytes, Category.COMMUNICATION),
            ]
        logits.storage.own(Category.ACTIVATION)
        self.kept.append(logits.storage)
        self.logits_bytes = logits.nbytes
        return logits

    def merge(self, arena: Arena, micro_batches: int) -> None:
        """Takes one tensor for the logits of all micro-batches, and frees it; the logits that it is
        made from stay until the next step begins.
        """
        arena.take(micro_batches * self.logits_bytes)


class DividedHead(Module):
    """A head of which each rank has a part of the vocabulary; the logits are gathered.

    As in ColwiseParallel(output_layouts=Replicate()): the gathered parts, then one tensor of
    them in order.

    is_sequence_divided: so is what it is given, which is gathered along the sequence first.
    """

    def __init__(self, head: Linear, ranks: int, *, is_sequence_divided: bool = False) -> None:
        rows, width = head.weight.shape
        self.ranks = ranks
        self.is_sequence_divided = is_sequence_divided
        self.weight = parameter(
            head.weight.arena, -(-rows // ranks), width, dtype=head.weight.dtype
        )

    def __call__(self, x: Tensor) -> Tensor:
        if self.is_sequence_divided:
            x = gather(x, self.ranks)
        elif x.arena.recorder is not None:
            x = sum_gradients(x, self.ranks)
        local = linear(x, self.weight)
        shape = local.shape
        node = record((local,), lambda gradient, _: [gradient.like(shape)])
        whole = (*shape[:-1], shape[-1] * self.ranks)
        with paused(x.arena):
            gathered = local.like(whole)
        collect(x.arena, "all-gather", gathered.nbytes, self.ranks)
        out = gathered.like()
        launch(Kind.JOIN, out, gathered)
        return connect(out, node)
