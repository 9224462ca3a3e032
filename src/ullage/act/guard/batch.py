"""The tensors of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

_LONG = 64
_PLAIN = (bool, int, float, str, bytes)


def tensors_by_name(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors in a nest of mappings, lists and tuples, and their places in it ("0.images")."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, element in value.items():
            yield from tensors_by_name(element, f"{name}.{key}".lstrip("."))
    elif isinstance(value, list | tuple) and not _is_plain(value):
        for index, element in enumerate(value):
            yield from tensors_by_name(element, f"{name}.{index}".lstrip("."))


def _is_plain(values: Sequence[Any]) -> bool:
    """True if a long list begins and ends with numbers or texts, as one of words or labels does:
    looking at each would take long in every step.
    """
    return len(values) > _LONG and isinstance(values[0], _PLAIN) and isinstance(values[-1], _PLAIN)
