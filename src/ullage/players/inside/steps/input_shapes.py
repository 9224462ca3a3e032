"""The shapes of what a root module was called with: steps whose batches differ are distinguished by
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

_MAX_TENSORS = 16
_DEPTH = 3


def find_shapes(
    tensor_type: type, positional: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[list[int]]:
    """The shapes of the first tensors among a call's arguments, in nested containers too."""
    shapes: list[list[int]] = []
    for tensor in _tensors(tensor_type, [*positional, *kwargs.values()], _DEPTH):
        # A nested tensor has no one shape: a jagged one has a size that is no number.
        with suppress(RuntimeError, TypeError, ValueError, AttributeError):
            shapes.append([int(size) for size in tensor.shape])
        if len(shapes) == _MAX_TENSORS:
            break
    return shapes


def count_tokens(
    tensor_type: type, positional: Sequence[Any], kwargs: Mapping[str, Any]
) -> int | None:
    """The elements of the first tensor of whole numbers with two dimensions, such as input_ids;
    None: there is none.
    """
    for tensor in _tensors(tensor_type, [*positional, *kwargs.values()], _DEPTH):
        if tensor.dim() == 2 and not tensor.is_floating_point() and not tensor.is_complex():
            whole = tensor.values() if str(tensor.layout) == "torch.jagged" else tensor
            return int(whole.numel())
    return None


def _tensors(tensor_type: type, holder: Any, depth: int) -> Iterator[Any]:
    if isinstance(holder, tensor_type):
        yield holder
    elif depth and isinstance(holder, (Mapping, list, tuple)):
        parts = holder.values() if isinstance(holder, Mapping) else holder
        for part in parts:
            yield from _tensors(tensor_type, part, depth - 1)
