"""Programs that hide from the guard what a step has done: CUDA graphs, and compiled modules."""

from __future__ import annotations

import gc
from typing import Any

import torch

from ullage.ground.errors import GuardError

_COMPILED = ("OptimizedModule", "ScriptModule")


def is_compiled(model: Any) -> bool:
    """True if a model, or a module in it, is compiled."""
    return any(
        type(module).__name__ in _COMPILED
        or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def refuse_graphs() -> None:
    """Raises GuardError if there is a CUDA graph: its replays write to parameters, gradients and
    states without moving version counters.
    """
    if not torch.cuda.is_initialized():
        return
    # By the objects themselves: nothing else lists the graphs of a process.
    if any(issubclass(type(each), torch.cuda.CUDAGraph) for each in gc.get_objects()):
        raise GuardError(
            "the program has a CUDA graph, whose replays do not show what they have done; the "
            "step is not run again"
        )
