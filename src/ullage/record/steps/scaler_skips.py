"""How many steps a gradient scaler has skipped: its calls that called no optimizer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ullage.record import torch_internals
from ullage.record.patches import Patches

_STEP = "_maybe_opt_step"


class ScalerSkips:
    """Counts over all scalers; `count` is None until one is used.

    num_steps: tells how often an optimizer has stepped.
    """

    def __init__(self, torch: ModuleType, num_steps: Callable[[], int]) -> None:
        self.count: int | None = None
        self._torch = torch
        self._num_steps = num_steps

    def install(self, patches: Patches) -> None:
        """Stands in front of the method that decides."""
        step = torch_internals.find(self._torch, f"torch.amp.grad_scaler.GradScaler.{_STEP}")
        if step is None:
            return

        @functools.wraps(step)
        def step_or_skip(scaler: Any, optimizer: Any, *arguments: Any, **kwargs: Any) -> Any:
            before = self._num_steps()
            result = step(scaler, optimizer, *arguments, **kwargs)
            skipped = self._num_steps() == before
            self.count = (self.count or 0) + skipped
            return result

        patches.replace(self._torch.amp.grad_scaler.GradScaler, _STEP, step_or_skip)
