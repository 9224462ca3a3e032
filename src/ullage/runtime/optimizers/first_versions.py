"""The version counters of an optimizer's states when they have just been made."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ullage.runtime.call import Call


def raw_step(optimizer: Any) -> Any:
    """`step` of its class without hooks."""
    step = type(optimizer).step
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def first_versions(optimizer: Any, group: Mapping[str, Any], parameter: Any) -> dict[str, int]:
    """The version counters of an optimizer's states when they have just been made, by name: those
    after the first step of a small optimizer of the same kind, less the operations of that step.
    """

    def step_small(mode: Any) -> Mapping[str, Any]:
        small = torch.nn.Parameter(
            torch.ones([2] * parameter.dim(), dtype=parameter.dtype, device=parameter.device)
        )
        small.grad = torch.ones_like(small)
        options = {
            name: value for name, value in group.items() if name not in ("params", "param_names")
        }
        twin = type(optimizer)([{**options, "params": [small]}])
        with mode:
            raw_step(twin)(twin)
        state: Mapping[str, Any] = twin.state[small]
        return state

    counting = _Counting()
    counted = step_small(counting)
    plain = step_small(nullcontext())
    return {
        name: value._version - counting.num_changes(counted[name])
        for name, value in plain.items()
        if isinstance(value, torch.Tensor)
    }


class _Counting(TorchDispatchMode):  # type: ignore[misc]
    """Counts in-place operations by tensor, but for fused updates."""

    def __init__(self) -> None:
        super().__init__()
        self._changed: list[Any] = []

    def num_changes(self, tensor: Any) -> int:
        return sum(each is tensor for each in self._changed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = Call(func, args, kwargs or {})
        if not call.is_fused:
            self._changed += call.written
        return call.run()
