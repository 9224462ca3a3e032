"""Native functions that read one thing of many tensors: version counters, whether they require a
gradient, and whether they have one.

They call torch's own C++ functions, whose names are the same on every 64-bit Linux. Where one is
missing or does not read what Python reads, there are none, and Python reads each tensor.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ullage.ground.native.libraries import GUARD

# at::TensorBase::_version() const, and of c10::TensorImpl requires_grad() and grad() const.
_VERSION = "_ZNK2at10TensorBase8_versionEv"
_REQUIRES_GRAD = "_ZNK3c1010TensorImpl13requires_gradEv"
_GRADIENT = "_ZNK3c1010TensorImpl4gradEv"
_TYPES = (torch.Tensor, torch.nn.Parameter)


class Reads(NamedTuple):
    """ullage's functions, and those of torch that they call. Tensors are passed as an array of
    pointers that `point_at` makes; whoever calls keeps the tensors.
    """

    library: Any
    torch_version: Any
    torch_requires_grad: Any
    torch_gradient: Any
    without_gradient: Any

    def versions(self, pointers: Any, versions: Any) -> None:
        """Writes the version counters."""
        read = self.library.ullage_read_versions
        read(self.torch_version, pointers, ctypes.c_int64(len(versions)), versions)

    def requires_grad(self, pointers: Any, flags: Any) -> None:
        """Writes whether they require a gradient."""
        read = self.library.ullage_read_requires_grad
        read(self.torch_requires_grad, pointers, ctypes.c_int64(len(flags)), flags)

    def count_gradients(self, pointers: Any) -> int:
        """Counts the parameters that have a gradient."""
        without = ctypes.c_void_p(self.without_gradient._cdata)
        count = self.library.ullage_count_gradients
        return int(count(self.torch_gradient, pointers, ctypes.c_int64(len(pointers)), without))

    def gradient_versions(self, pointers: Any, versions: Any) -> None:
        """Writes the version counters of their gradients; -1 where there is none."""
        without = ctypes.c_void_p(self.without_gradient._cdata)
        read = self.library.ullage_read_gradient_versions
        count = ctypes.c_int64(len(versions))
        read(self.torch_gradient, self.torch_version, pointers, count, without, versions)


def point_at(tensors: Any) -> Any:
    """An array of pointers to tensors."""
    return (ctypes.c_void_p * len(tensors))(*[tensor._cdata for tensor in tensors])


def is_plain(tensor: Any) -> bool:
    """True if native functions may read a tensor: no subclass, and none of inference mode."""
    return type(tensor) in _TYPES and not tensor.is_inference()


@cache
def load_reads() -> Reads | None:
    """The native functions; None where ullage's library or a function of torch is missing, or one
    does not read what Python reads.
    """
    folder = Path(torch.__file__).parent / "lib"
    try:
        with torch.inference_mode(mode=False), torch._C._DisableTorchDispatch():
            reads = Reads(
                ctypes.PyDLL(str(GUARD)),
                _function(folder / "libtorch_cpu.so", _VERSION),
                _function(folder / "libc10.so", _REQUIRES_GRAD),
                _function(folder / "libc10.so", _GRADIENT),
                torch.zeros(1),
            )
            return reads if _are_right(reads) else None
    except (OSError, AttributeError):
        return None


def _function(library: Path, name: str) -> Any:
    return ctypes.cast(getattr(ctypes.CDLL(str(library)), name), ctypes.c_void_p)


def _are_right(reads: Reads) -> bool:
    """True if they read what Python reads of three tensors."""
    tensors = [torch.zeros(1), torch.zeros(1, requires_grad=True), torch.zeros(1)]
    tensors[0].add_(1)
    tensors[2].requires_grad_().grad = torch.zeros(1)
    pointers = point_at(tensors)
    versions, flags = (ctypes.c_int64 * 3)(), (ctypes.c_uint8 * 3)()
    reads.versions(pointers, versions)
    reads.requires_grad(pointers, flags)
    of_gradients = (ctypes.c_int64 * 3)()
    tensors[2].grad.add_(1)
    reads.gradient_versions(pointers, of_gradients)
    return (
        [*of_gradients] == [-1, -1, tensors[2].grad._version]
        and [*versions] == [tensor._version for tensor in tensors]
        and [*flags] == [tensor.requires_grad for tensor in tensors]
        and [reads.count_gradients(point_at([tensor])) for tensor in tensors] == [0, 0, 1]
    )
