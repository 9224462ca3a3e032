"""Runs a model under torch's autocast, with float32 outputs for the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from ullage.act.techniques.applying.target import Target


def compute_in(target: Target, dtype: Any, refuse: Callable[[str], NoReturn]) -> None:
    """Makes the model of a target compute in a 16-bit dtype where that is safe.

    Args:
        refuse: raises a PlanError with a reason: parameters already have 16 bits, or, when the
            model is called, the program uses autocast itself.
    """
    import torch

    model = target.model
    if any(parameter.dtype in {torch.bfloat16, torch.float16} for parameter in model.parameters()):
        refuse("its parameters already have 16 bits")

    def run(forward: Any, *arguments: Any, **keywords: Any) -> Any:
        device = next(model.parameters()).device.type
        if torch.is_autocast_enabled(device):
            refuse("it uses autocast itself")
        with torch.autocast(device, dtype=dtype):
            outputs = forward(*arguments, **keywords)
        return widened(outputs)

    target.wrap_forward("", run)


def widened(outputs: Any) -> Any:
    """Outputs with 16-bit tensors converted to float32; containers keep their class."""
    import torch

    if isinstance(outputs, torch.Tensor):
        return outputs.float() if outputs.dtype in {torch.bfloat16, torch.float16} else outputs
    if isinstance(outputs, dict):
        for name, output in outputs.items():
            outputs[name] = widened(output)
        return outputs
    if isinstance(outputs, tuple) and hasattr(outputs, "_fields"):
        return type(outputs)(*(widened(output) for output in outputs))
    if isinstance(outputs, tuple | list):
        return type(outputs)(widened(output) for output in outputs)
    return outputs
