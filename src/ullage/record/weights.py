"""Random initialisation that nobody reads.

A model is built on the CPU, filled with random numbers, and moved to a GPU that is not there: the
numbers go nowhere. Filling large CPU tensors in place is therefore left out, unless the program's
user asks for real values. Untouched pages of a tensor take no host memory either. What was left out
is counted and stands in the report.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

MIN_ELEMENTS = 1 << 16
"""Smaller tensors are filled: they cost nothing, and small values may steer a program."""


class SkippedWeights:
    """Decides which fills are left out, and counts them."""

    def __init__(self, torch: ModuleType, *, is_on: bool) -> None:
        self.count = 0
        self.bytes = 0
        aten = torch.ops.aten
        self.fills: frozenset[Any] = frozenset(
            (aten.normal_.default, aten.uniform_.default) if is_on else ()
        )

    def is_skipped(self, tensor: Any) -> bool:
        """Whether filling this tensor is left out; counts it if so."""
        if tensor.device.type != "cpu" or tensor.numel() < MIN_ELEMENTS:
            return False
        self.count += 1
        self.bytes += tensor.numel() * tensor.element_size()
        return True
