"""The part of a sharded tensor that this rank has, and how often it was changed.

A DTensor and its part have version counters of their own. An in-place operation on one DTensor
moves the DTensor's, one on a list of them the part's (shared_step.py sees to that), and what FSDP2
adds to a part moves the part's. No operation moves both, so the sum counts them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_WRAPPERS = ("DTensor", "AsyncCollectiveTensor")


def is_sharded(tensor: Any) -> bool:
    """True if it is a DTensor."""
    return hasattr(tensor, "_local_tensor")


def part_of(tensor: Any) -> Any:
    """The tensor that has the memory of a DTensor on this rank; others are their own."""
    part = getattr(tensor, "_local_tensor", tensor)
    # What a collective gives is wrapped until somebody uses it.
    return part.elem if type(part).__name__ == "AsyncCollectiveTensor" else part


def is_followed(tensor: Any) -> bool:
    """True if it is not a DTensor, or one of real numbers whose part is a tensor of torch's own.
    Optimizers change complex ones by views, whose counters are others.
    """
    return not is_sharded(tensor) or (type(part_of(tensor)) in _PLAIN and not tensor.is_complex())


def version_of(tensor: Any) -> int:
    """How many in-place operations a tensor has had, on it or on its part."""
    part = part_of(tensor)
    version: int = tensor._version
    return version if part is tensor else version + part._version


def have_parts(types: Iterable[type]) -> bool:
    """True if tensors of some types hand their operations on to their parts, where a mode of torch
    meets them next.
    """
    return any(each.__name__ in _WRAPPERS for each in types)


def are_fake(types: Iterable[type]) -> bool:
    """True if tensors of some types have no memory: DTensor asks them for shapes."""
    return any(each.__name__ == "FakeTensor" for each in types)
