"""The model in bfloat16 where that is safe (torch's autocast), its parameters in float32.

Matrix products and convolutions take and give bfloat16; norms, softmax and losses stay in float32,
and so do the model's outputs, for what the program does with them. For float16 see
autocast_float16.py.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NoReturn

from ullage.errors import PlanError
from ullage.techniques.technique import Action, Place, Semantics, Technique

if TYPE_CHECKING:
    from ullage.techniques.target import Target


def _apply(target: Target, _: Action) -> None:
    import torch

    if any(one.dtype in {torch.bfloat16, torch.float16} for one in target.model.parameters()):
        _refuse("parameters are in 16 bits already")
    target.wrap_forward("", functools.partial(_run, target.model))


def _run(model: Any, forward: Any, *arguments: Any, **named: Any) -> Any:
    import torch

    device = next(model.parameters()).device.type
    if torch.is_autocast_enabled(device):
        _refuse("it uses autocast itself")
    with torch.autocast(device, dtype=torch.bfloat16):
        outputs = forward(*arguments, **named)
    return widened(outputs)


def widened(outputs: Any) -> Any:
    """Outputs with what is in 16 bits as float32; classes of tuples and mappings are kept."""
    import torch

    if isinstance(outputs, torch.Tensor):
        return outputs.float() if outputs.dtype in {torch.bfloat16, torch.float16} else outputs
    if isinstance(outputs, dict):
        for name, one in outputs.items():
            outputs[name] = widened(one)
        return outputs
    if isinstance(outputs, tuple) and hasattr(outputs, "_fields"):
        return type(outputs)(*(widened(one) for one in outputs))
    if isinstance(outputs, tuple | list):
        return type(outputs)(widened(one) for one in outputs)
    return outputs


def _refuse(why: str) -> NoReturn:
    raise PlanError(f"'autocast' does not go with this program: {why}")


AUTOCAST = Technique(
    name="autocast",
    does="computes in bfloat16 where that is safe (autocast), with parameters in float32",
    semantics=Semantics.ROUNDING,
    place=Place.PROGRAM,
    reference="https://docs.pytorch.org/docs/stable/amp.html",
    apply=_apply,
)
