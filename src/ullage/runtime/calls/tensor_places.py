"""The tensors in what a model is called with and returns: in tuples, lists, dicts and objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

_PLAIN = (str, bytes, int, float, bool, type(None), torch.dtype, torch.device, torch.Size)
_CLOSED = (
    type, ModuleType, FunctionType, MethodType, BuiltinFunctionType, torch.nn.Module,
    torch.optim.Optimizer, torch.Generator,
)  # fmt: skip


def tensors_of(value: Any) -> list[Any]:
    """All tensors in a value, each once, in a fixed order."""
    tensors: dict[int, Any] = {}

    def note(tensor: Any) -> Any:
        tensors[id(tensor)] = tensor
        return tensor

    replace_tensors(value, note)
    return [*tensors.values()]


def replace_tensors(value: Any, change: Callable[[Any], Any]) -> Any:
    """A value with other tensors. Tuples are made again; lists, dicts and objects stay themselves,
    and get other elements.
    """
    return _replace(value, change, {})


def _replace(value: Any, change: Callable[[Any], Any], visited: dict[int, Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, _PLAIN + _CLOSED):
        return value
    if isinstance(value, tuple):
        parts = [_replace(part, change, visited) for part in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if id(value) in visited:
        return value
    visited[id(value)] = value
    for place, part in _parts(value):
        new = _replace(part, change, visited)
        if new is not part:
            place(new)
    return value


def _parts(value: Any) -> Iterator[tuple[Callable[[Any], None], Any]]:
    """What a value consists of, each with a function that puts something else there."""
    if isinstance(value, list):
        for index, part in enumerate(list(value)):
            yield lambda new, index=index: value.__setitem__(index, new), part  # type: ignore[misc]
    elif isinstance(value, MutableMapping):
        for key, part in list(value.items()):
            yield lambda new, key=key: value.__setitem__(key, new), part  # type: ignore[misc]
    elif not isinstance(value, Mapping):
        names = [*getattr(value, "__dict__", ()), *_slots_of(value)]
        for name in names:
            part = getattr(value, name, None)
            yield (
                lambda new, name=name: object.__setattr__(value, name, new),  # type: ignore[misc]
                part,
            )


def _slots_of(value: Any) -> Iterator[str]:
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots
