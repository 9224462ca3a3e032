"""The batch of a step: it is the same in the second try, or the second try is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ullage.errors import GuardError

_LONG = 64
_PLAIN = (bool, int, float, str, bytes)


class Batch:
    """The tensors that a step is called with.

    Args:
        arguments: by position.
        keywords: by name.
    """

    def __init__(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        self._versions = [
            (name, tensor, tensor._version)
            for name, tensor in tensors_by_name({**dict(enumerate(arguments)), **keywords})
            if not tensor.is_inference()
        ]

    def check(self) -> None:
        """Raises GuardError if the step has changed one in place."""
        changed = [name for name, each, version in self._versions if each._version != version]
        if changed:
            raise GuardError(
                f"argument {', '.join(changed[:3])} of the step was changed in place before it ran "
                "out of memory; it cannot be run again: change a copy"
            )


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
    """Whether a long list begins and ends with numbers or texts, as one of words or labels does:
    looking at each would take long in every step.
    """
    return len(values) > _LONG and isinstance(values[0], _PLAIN) and isinstance(values[-1], _PLAIN)
