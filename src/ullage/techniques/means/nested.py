"""What is in the nested tuples, lists and dicts that modules are given, and return.

torch's own walk (`torch.utils._pytree`) takes a class that is not registered with it, such as a
dict of a program's own, for a leaf, and the tensors in it would be missed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def leaves(value: Any) -> Iterator[Any]:
    """Whatever is no tuple, list or dict in nested ones."""
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
