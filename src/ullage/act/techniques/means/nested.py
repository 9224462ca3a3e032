"""The tensors in the nested tuples, lists and dicts that modules take and return.

torch's own traversal (`torch.utils._pytree`) treats an unregistered class, such as a program's own
dict subclass, as a leaf, and would miss the tensors in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def leaves(value: Any) -> Iterator[Any]:
    """The leaves of nested tuples, lists and dicts."""
    if isinstance(value, tuple | list):
        for element in value:
            yield from leaves(element)
    elif isinstance(value, dict):
        yield from leaves(list(value.values()))
    else:
        yield value


def tensors(value: Any) -> Iterator[Any]:
    """The tensors among the leaves."""
    from torch import Tensor

    return (leaf for leaf in leaves(value) if isinstance(leaf, Tensor))
