"""Splits the arguments of a model by rows of the batch, and joins the outputs of the parts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ullage.act.techniques.means.nested import tensors


def split_rows(arguments: Any, num_parts: int) -> list[Any]:
    """The arguments of each part: tensors with as many rows as the first tensor are split.

    Args:
        given: nested tuples, lists and dicts.
        num_parts: the largest number of parts.
    """
    total = num_rows(arguments)
    size = max(1, -(-total // num_parts))
    return [
        _mapped(arguments, functools.partial(_some_rows, total, start, size))
        for start in range(0, total, size)
    ]


def num_rows(arguments: Any) -> int:
    """The number of rows of the first tensor; 0 if there is none."""
    return next((len(tensor) for tensor in tensors(arguments) if tensor.dim()), 0)


def join_rows(outputs: list[Any], rows: list[int]) -> Any:
    """The outputs of the parts, joined; None if they do not have one value per row.

    Outputs that are neither tensors nor None, such as a cache, become None.

    Args:
        outputs: of each part.
        rows: the number of rows of each part.
    """
    import torch

    first = outputs[0]
    if isinstance(first, torch.Tensor):
        is_whole = all(
            output.dim() and len(output) == size for output, size in zip(outputs, rows, strict=True)
        )
        return torch.cat(outputs) if is_whole else None
    if isinstance(first, dict):
        for name in list(first):
            first[name] = join_rows([output[name] for output in outputs], rows)
        return first if any(output is not None for output in first.values()) else None
    if isinstance(first, tuple | list):
        joined = [join_rows(list(some), rows) for some in zip(*outputs, strict=True)]
        if all(output is None for output in joined):
            return None
        return type(first)(*joined) if hasattr(first, "_fields") else type(first)(joined)
    return None


def _some_rows(total: int, start: int, size: int, leaf: Any) -> Any:
    import torch

    is_of_rows = isinstance(leaf, torch.Tensor) and leaf.dim() and len(leaf) == total
    return leaf[start : start + size] if is_of_rows else leaf


def _mapped(arguments: Any, change: Callable[[Any], Any]) -> Any:
    if type(arguments) in {tuple, list}:
        return type(arguments)(_mapped(argument, change) for argument in arguments)
    if type(arguments) is dict:
        return {name: _mapped(argument, change) for name, argument in arguments.items()}
    return change(arguments)
