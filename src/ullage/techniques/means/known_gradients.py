"""A loss whose gradients are known already when it is made.

with_gradients(value, [gradient], parameter).backward()     # parameter.grad is gradient
"""

from __future__ import annotations

import functools
from typing import Any

from ullage.errors import PlanError


def with_gradients(value: Any, gradients: list[Any], *tensors: Any) -> Any:
    """A loss of this value, whose backward hands its gradients to these tensors, once.

    Args:
        value: a tensor without dimensions.
        gradients: one a tensor, of its shape; they are changed in place.
        tensors: what the loss was computed from.
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
                    "backward is asked for gradients of gradients (create_graph=True) of a loss "
                    "whose gradients the plan has computed with it; take 'micro_batches' and "
                    "'chunked_loss' out of the plan"
                )
            gradients, context.gradients = context.gradients, None
            if gradients is None:
                raise PlanError(
                    "backward runs twice through a loss whose gradients the plan has computed with "
                    "it; take 'micro_batches' and 'chunked_loss' out of the plan"
                )
            return None, None, *(gradient.mul_(factor) for gradient in gradients)

    return Known
