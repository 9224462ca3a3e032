"""The joint between the graph of a script and that of a model's call.

A script gets tensors with the memory of the model's outputs, whose graph ends in a `Head`. So the
gradients of the outputs can be computed first, and the model's own part later, and again; what the
model has saved for backward is held by the record of the call alone, which can let it go.

    loss -> ... -> Head -> (anchor) -> Joint -> (bundle) -> _Parameters -> the model's parameters

The guard's backward of the script's part stops at the anchor. Everything else, such as
torch.autograd.grad and higher orders, goes on: the joint runs the model's part, and the gradients
reach the parameters by the bundle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

import torch

_FREED = (
    "Trying to backward through the graph of a model's call a second time, after its saved values "
    "have been freed. Specify retain_graph=True if you need to backward through it twice."
)
_LET_GO = (
    "ullage: guard: not recovered: the graph of the call was let go for a loss, and the call "
    "is run again in a plain backward alone"
)


class Bundle:
    """The edges to the parameters of a model, as one tensor."""

    def __init__(self, parameters: Sequence[Any]) -> None:
        self.parameters = [each for each in parameters if each.requires_grad]
        self.zero = torch.zeros((), device="cpu")
        self.results: list[Any] = []
        with torch.enable_grad():
            self.tensor = _Parameters.apply(self.results, self.zero, *self.parameters)


class _Parameters(torch.autograd.Function):  # type: ignore[misc]
    """Gives the parameters the gradients that the joints have computed."""

    @staticmethod
    def forward(ctx: Any, results: list[Any], zero: Any, *parameters: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.results, ctx.count = results, len(parameters)
        return zero.clone()

    @staticmethod
    def backward(ctx: Any, _: Any) -> Any:
        sums: list[Any] = [None] * ctx.count
        for gradients in ctx.results:
            sums = [
                gradient if each is None else each if gradient is None else each + gradient
                for each, gradient in zip(sums, gradients, strict=True)
            ]
        ctx.results.clear()
        return (None, None, *sums)


class Joint(torch.autograd.Function):  # type: ignore[misc]
    """Runs the backward of a model's call for what goes past the guard."""

    @staticmethod
    def forward(ctx: Any, record: Any, bundle: Bundle, _: Any) -> Any:
        ctx.set_materialize_grads(False)
        # The record has the anchor, and would have itself.
        ctx.record, ctx.bundle = ref(record), bundle
        return bundle.zero.detach()

    @staticmethod
    def backward(ctx: Any, _: Any) -> Any:
        record, bundle = ctx.record(), ctx.bundle
        if record is not None and record.is_stopping:
            return None, None, None
        if record is not None and record.outputs is None and record.failure is not None:
            raise torch.OutOfMemoryError(f"{record.failure.message}\n{_LET_GO}")
        if record is None or record.outputs is None:
            raise RuntimeError(_FREED)
        pairs = record.pairs()
        with record.passing():
            gradients = torch.autograd.grad(
                [output for output, _ in pairs],
                bundle.parameters,
                [gradient for _, gradient in pairs],
                retain_graph=True,
                create_graph=torch.is_grad_enabled(),
                allow_unused=True,
            )
        bundle.results.append(gradients)
        return None, None, bundle.zero


class Head(torch.autograd.Function):  # type: ignore[misc]
    """Stands for the outputs of a model's call in the graph of the script."""

    @staticmethod
    def forward(ctx: Any, record: Any, _: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.record = record
        return tuple(output.detach() for output in record.outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.record.gradients = gradients
        return None, ctx.record.zero


def join(record: Any, bundle: Bundle) -> tuple[Any, ...]:
    """What a script gets in place of the outputs of a call: tensors that share their memory."""
    record.zero = bundle.zero
    record.anchor = Joint.apply(record, bundle, bundle.tensor)
    return tuple(Head.apply(record, record.anchor))


def record_of(node: Any) -> Any:
    """The record of the call whose outputs a node of a graph stands for; else None."""
    return node.record if isinstance(node, Head._backward_cls) else None
