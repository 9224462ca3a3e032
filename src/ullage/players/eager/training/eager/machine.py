"""The rules that PyTorch takes from the GPU's kind: workspaces, and the kernel for attention."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ullage.players.eager.training.eager.dtype import FLOAT32, DType

_WORKSPACES_FROM = (1, 13)
_FLASH_FROM = (8, 0)


class Kernel(Enum):
    """The kernels of scaled_dot_product_attention."""

    CUDNN = "cudnn"
    FLASH = "flash"
    EFFICIENT = "efficient"


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU and the PyTorch on it.

    Attributes:
        capability: compute capability, such as (9, 0).
        torch: (major, minor) of PyTorch.
        multiprocessors: SMs.
        threads_per_multiprocessor: the most that can be resident on one.
    """

    capability: tuple[int, int] = (9, 0)
    torch: tuple[int, int] = (2, 15)
    multiprocessors: int = 132
    threads_per_multiprocessor: int = 2048

    @property
    def blas_workspace_bytes(self) -> int:
        """cuBLAS's workspace: 32 MiB on Hopper and later, else 8 MiB and 128 KiB.

        Counts: one. Ignores: CUBLAS_WORKSPACE_CONFIG. Error: none.
        Source: aten/src/ATen/cuda/CublasHandlePool.cpp. From PyTorch 2.15 on it is there while a
        product runs; before, one stays for each thread that has used it; before 1.13 cuBLAS had its
        own outside of PyTorch's memory.
        """
        if self.torch < _WORKSPACES_FROM:
            return 0
        return 33_554_432 if self.capability >= (9, 0) else 8_519_680

    def attention(
        self,
        dtype: DType,
        width: int,
        value_width: int,
        *,
        has_mask: bool = False,
        learns_mask: bool = False,
        has_dropout: bool = False,
    ) -> Kernel:
        """The kernel that sdpa takes for heads of a width, whose values may have another.

        Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: cuDNN comes first on
        capability 9.0 and 10.x, but for dropout and for a mask that needs a gradient; flash
        attention takes 16-bit types up to a width of 256, without a mask. Ignores: heads so odd
        that PyTorch multiplies by hand.
        """
        if dtype is FLOAT32 or width % 8 or learns_mask or self.capability < _FLASH_FROM:
            return Kernel.EFFICIENT
        widest = 256 if self.capability == (9, 0) else 128
        is_narrow = max(width, value_width) <= widest
        if self.capability[0] in (9, 10) and is_narrow and not has_dropout:
            return Kernel.CUDNN
        if has_mask or width > 256 or width != value_width:
            return Kernel.EFFICIENT
        return Kernel.FLASH
