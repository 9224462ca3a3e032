"""Reads of many tensors before each step: version counters, `requires_grad`, gradients.

    counters = Counters(parameters)
    before = counters.read()
    ...
    counters.check()                # after an error: whether what was read is theirs

Native functions read them (native_reads.py), or Python where these do not exist, or a tensor is a
subclass or of inference mode.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from operator import attrgetter
from typing import Any
from weakref import ref

import torch

from ullage.act.guard.reads.native_reads import is_plain, load_reads, point_at
from ullage.act.guard.sharded.local_tensors import version_of
from ullage.ground.errors import GuardError

_GRAD = attrgetter("grad")
_REQUIRES_GRAD = attrgetter("requires_grad")


class Counters:
    """The version counters of some tensors. They are read from tensors without memory that share
    them, so that a tensor may be freed or exchanged.

    Args:
        tensors: are held.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._tensors = tensors
        self._sharing: list[Any] = []
        self._reads = load_reads() if all(map(is_plain, tensors)) else None
        if self._reads is not None:
            self._sharing = [_share_counter(tensor) for tensor in tensors]
            self._kind = ctypes.c_int64 * len(tensors)
            self._pointers = point_at(self._sharing)

    def read(self) -> Sequence[int]:
        """The counters, in the order of the tensors."""
        if self._reads is None:
            return [*map(version_of, self._tensors)]
        versions: Any = self._kind()
        self._reads.versions(self._pointers, versions)
        return versions  # type: ignore[no-any-return]  # an array is a sequence

    def check(self) -> None:
        """Raises GuardError if a tensor has got another counter, as by `swap_tensors`."""
        for tensor, sharing in zip(self._tensors, self._sharing, strict=False):
            if tensor._version != sharing._version:
                raise GuardError(
                    "a parameter or state was exchanged for another tensor in place, which hides "
                    "what the step has changed"
                )


def _share_counter(tensor: Any) -> Any:
    """A tensor without memory that has the version counter of another.

    Exchanging its data keeps its counter, and releases the other's memory.
    """
    # Modes of the program do not see it: one of them could fail it.
    with torch.inference_mode(mode=False), torch._C._DisableTorchDispatch():
        sharing = tensor.detach()
        sharing.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return sharing


class Flags:
    """The flags of parameters: do they require gradients, and have them?

    Args:
        parameters: are held.
    """

    def __init__(self, parameters: Sequence[Any]) -> None:
        self._parameters = parameters
        self._reads = load_reads() if all(map(is_plain, parameters)) else None
        if torch.__future__.get_swap_module_params_on_conversion():
            self._reads = None
        if self._reads is not None:
            # torch exchanges no tensor for another in place while there are references like these.
            self._references = [*map(ref, parameters)]
            self._kind = ctypes.c_uint8 * len(parameters)
            self._pointers = point_at(parameters)

    def read_requires_grad(self) -> Sequence[bool | int]:
        """Reads whether each requires a gradient."""
        if self._reads is None:
            return [*map(_REQUIRES_GRAD, self._parameters)]
        flags: Any = self._kind()
        self._reads.requires_grad(self._pointers, flags)
        return flags  # type: ignore[no-any-return]  # an array is a sequence

    def read_gradient_versions(self) -> Sequence[int]:
        """The version counter of each one's gradient; -1 where there is none."""
        if self._reads is None:
            gradients = map(_GRAD, self._parameters)
            return [-1 if gradient is None else version_of(gradient) for gradient in gradients]
        versions: Any = (ctypes.c_int64 * len(self._parameters))()
        self._reads.gradient_versions(self._pointers, versions)
        return versions  # type: ignore[no-any-return]  # an array is a sequence

    def have_gradients(self) -> bool:
        """True if any has a gradient."""
        if self._reads is None:
            return any(gradient is not None for gradient in map(_GRAD, self._parameters))
        return self._reads.count_gradients(self._pointers) > 0
