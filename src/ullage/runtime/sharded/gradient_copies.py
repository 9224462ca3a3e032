"""Copies of the gradients from before a step, for those that collectives add to as backward goes.

FSDP2 adds what a reduce-scatter gives to the gradient of a shard, and with gradient_as_bucket_view
an all-reduce runs in the gradients' own memory. After an error nobody knows whose numbers are in
them, so they are put back from copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

import torch

from ullage.errors import GuardError

_NO_COPY = (
    "there was no memory for a copy of the gradients of earlier micro-batches, to which "
    "collectives add as backward goes; pass all micro-batches of an optimizer's step to one "
    "guard.step"
)
_NO_MEMORY = (
    "there is no memory for the gradients of earlier micro-batches, which the step has freed"
)


class GradientCopies:
    """The gradients that some parameters have now.

    Args:
        parameters: some of them have a gradient.
    """

    def __init__(self, parameters: Sequence[Any]) -> None:
        self._parameters = parameters
        self._gradients = [None if each.grad is None else ref(each.grad) for each in parameters]
        self._copies: list[Any] | None = None
        with torch.no_grad():
            try:
                self._copies = [_copy(each.grad) for each in parameters]
            except torch.OutOfMemoryError:
                self._copies = None

    def restore(self) -> None:
        """Gives the parameters these gradients again.

        Raises:
            GuardError: there was no memory for copies, or there is none for a gradient that was
                freed.
        """
        if self._copies is None:
            raise GuardError(_NO_COPY)
        with torch.no_grad():
            for index, (parameter, copy) in enumerate(
                zip(self._parameters, self._copies, strict=True)
            ):
                parameter.grad = None if copy is None else self._put_back(index, copy)

    def _put_back(self, index: int, copy: Any) -> Any:
        reference = self._gradients[index]
        gradient = None if reference is None else reference()
        if gradient is not None:
            return gradient.copy_(copy)
        try:
            gradient = copy.clone()
        except torch.OutOfMemoryError:
            raise GuardError(_NO_MEMORY) from None
        self._gradients[index] = ref(gradient)
        return gradient


def _copy(gradient: Any) -> Any:
    return None if gradient is None else gradient.detach().clone()
