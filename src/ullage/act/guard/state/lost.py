"""Tensors that are not held between two steps: those with a graph, whose memory is the program's to
free. Where one is gone that a second try would find, a stand-in refuses every use of it.
"""

from __future__ import annotations

from collections.abc import Collection
from operator import is_
from typing import Any, NoReturn
from weakref import ref

import torch

from ullage.ground.errors import GuardError

# Who asks these has not read a value: a checkpointed block asks them of what its module holds.
_NO_USES = (torch.Tensor.is_inference, torch.Tensor._version.__get__)


class Weak:
    """A reference to a tensor with a graph, and its version.

    Args:
        tensor: is not held.
    """

    __slots__ = ("_like", "_tensor", "_version")

    def __init__(self, tensor: Any) -> None:
        self._tensor = ref(tensor)
        self._version = tensor._version
        self._like = tensor.shape, tensor.dtype

    @property
    def value(self) -> Any:
        """The tensor; once it is gone, or was changed in place, what stands for it."""
        tensor: Any = self._tensor()
        if tensor is None or tensor._version != self._version:
            shape, dtype = self._like
            # On the device meta, as `other.data = lost` asks nobody: there it is refused by torch.
            lost = torch.Tensor._make_wrapper_subclass(
                Lost, shape, dtype=dtype, device="meta", requires_grad=True
            )
            with torch._C.DisableTorchFunctionSubclass():
                lost.register_hook(_refuse)  # of a function that does not read its input
            return lost
        return tensor

    def is_for(self, value: Any) -> bool:
        """True if a value is the tensor, as it was."""
        tensor: Any = self._tensor()
        return tensor is not None and value is tensor and tensor._version == self._version


class Lost(torch.Tensor):  # type: ignore[misc]  # torch has no types here
    """Stands for a tensor that is gone. A step that replaces it unread is run again exactly."""

    @classmethod
    def __torch_function__(cls, function: Any, *rest: Any, **__: Any) -> Any:
        return super().__torch_function__(function, *rest) if function in _NO_USES else _refuse()

    @classmethod
    def __torch_dispatch__(cls, *_: Any, **__: Any) -> Any:
        # Constructors in C, such as torch.Tensor(lost), ask for no __torch_function__.
        _refuse()


def _refuse(*_: Any) -> NoReturn:
    raise GuardError(
        "the step uses a tensor with a graph of an earlier step, which it had replaced before "
        "it ran out of memory; keep tensor.detach()"
    )


def hold(value: Any) -> Any:
    """A value as it is kept in a note: itself, or a weak reference to a tensor with a graph."""
    if isinstance(value, torch.Tensor) and type(value) is not Lost and value.grad_fn is not None:
        return Weak(value)
    return value


def held(value: Any) -> Any:
    """The object that a value of a note stands for."""
    return value.value if type(value) is Weak else value


def is_held(value: Any, noted: Any) -> bool:
    """True if a value is that of a note."""
    return noted.is_for(value) if type(noted) is Weak else value is noted


def are_held(values: Collection[Any], noted: Collection[Any]) -> bool:
    """True if values are those of a note, of which there are as many."""
    return all(map(is_, values, noted)) or all(map(is_held, values, noted))
