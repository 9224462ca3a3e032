"""Pinned host memory in slabs: torch rounds each pinned tensor up to a power of two."""

from __future__ import annotations

from typing import Any

_LEAST_BYTES = 2**24
_ALIGNMENT = 512


class Pinned:
    """Allocates host tensors side by side in slabs.

    Args:
        pin: whether the memory is pinned.
    """

    def __init__(self, *, pin: bool) -> None:
        self._pin = pin
        self._slabs: list[Any] = []
        self._used_bytes: list[int] = []

    def empty_like(self, tensor: Any) -> Any:
        """An uninitialised host tensor with the shape, strides and dtype of another tensor."""
        import torch

        flat = self.empty(tensor.numel() * tensor.element_size()).view(tensor.dtype)
        strides = torch.empty_like(tensor, device="meta").stride()
        return flat.as_strided(tensor.size(), strides)

    def empty(self, num_bytes: int) -> Any:
        """Uninitialised bytes on the host."""
        import torch

        for index, slab in enumerate(self._slabs):
            if self._used_bytes[index] + num_bytes <= slab.numel():
                break
        else:
            index = len(self._slabs)
            self._slabs.append(
                torch.empty(self._next_bytes(num_bytes), dtype=torch.uint8, pin_memory=self._pin)
            )
            self._used_bytes.append(0)
        start = self._used_bytes[index]
        self._used_bytes[index] = -(-(start + num_bytes) // _ALIGNMENT) * _ALIGNMENT
        return self._slabs[index][start : start + num_bytes]

    def _next_bytes(self, num_bytes: int) -> int:
        """The size of a new slab: a power of two, at most a quarter of all slabs or the request."""
        total = sum(slab.numel() for slab in self._slabs)
        size = _LEAST_BYTES
        while size < num_bytes or 2 * size <= total // 4:
            size *= 2
        return size
