"""A loss whose gradients are already computed when it is created.

with_gradients(value, [gradient], parameter).backward()     # parameter.grad is gradient
"""

from __future__ import annotations

import functools
from typing import Any

from ullage.ground.errors import PlanError


def with_gradients(value: Any, gradients: list[Any], *tensors: Any) -> Any:
    """A loss with this value, whose backward passes the gradients to the tensors, once.

    Args:
        value: a tensor without dimensions.
        gradients: one per tensor, of its shape; they are changed in place.
        tensors: the tensors that the loss was computed from.
    """
    return _function().apply(value, gradients, *tensors)


@functools.cache
def _function() -> Any:
    import torch

    class Known(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, value: Any, gradients: list[Any], *_: Any) -> Any:
            context.gradients = gradients
            return value.clone()

        @staticmethod
        def backward(context: Any, factor: Any) -> Any:
            if torch.is_grad_enabled():
                raise PlanError(
                    "the program computes gradients of gradients (create_graph=True) of a loss "
                    "whose gradients the plan computes in forward; remove 'micro_batches' and "
                    "'chunked_loss' from the plan"
                )
            gradients, context.gradients = context.gradients, None
            if gradients is None:
                raise PlanError(
                    "backward runs twice through a loss whose gradients the plan computes in "
                    "forward; remove 'micro_batches' and 'chunked_loss' from the plan"
                )
            return None, None, *(gradient.mul_(factor) for gradient in gradients)

    return Known
