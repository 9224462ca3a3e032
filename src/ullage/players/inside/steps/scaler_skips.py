"""How often an optimizer has stepped, and how many steps a gradient scaler has skipped: its calls
that called no optimizer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ullage.players.inside import torch_internals
from ullage.players.inside.part import Part
from ullage.players.inside.patches import Patches
from ullage.players.inside.steps.phases import optimizer_hooks

_STEP = "_maybe_opt_step"


class ScalerSkips(Part):
    """Counts over all scalers; `count` is None until one is used.

    on_step: called after each step of an optimizer; None: others end the steps.
    """

    def __init__(self, torch: ModuleType, on_step: Callable[[], None] | None) -> None:
        self.count: int | None = None
        self._torch = torch
        self._on_step = on_step
        self._num_steps = 0
        self._handle: Any = None

    def install(self, patches: Patches) -> None:
        """Counts steps, and stands in front of the method of scalers that decides."""
        hooks = optimizer_hooks(self._torch)
        self._handle = hooks.register_optimizer_step_post_hook(self._end_step)
        step = torch_internals.find(self._torch, f"torch.amp.grad_scaler.GradScaler.{_STEP}")
        if step is None:
            return

        @functools.wraps(step)
        def step_or_skip(scaler: Any, optimizer: Any, *arguments: Any, **kwargs: Any) -> Any:
            before = self._num_steps
            result = step(scaler, optimizer, *arguments, **kwargs)
            self.count = (self.count or 0) + (self._num_steps == before)
            return result

        patches.replace(self._torch.amp.grad_scaler.GradScaler, _STEP, step_or_skip)

    def _end_step(self, *_: object) -> None:
        self._num_steps += 1
        if self._on_step is not None:
            self._on_step()

    def remove(self) -> None:
        """Counts no more."""
        self._handle.remove()
