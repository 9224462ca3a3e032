"""Activation checkpointing: chosen modules save only their inputs, and run again in backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.act.techniques.means.rerun import Rerun, checkpointed
from ullage.act.techniques.technique import Action, Place, Semantics, Technique

if TYPE_CHECKING:
    from ullage.act.techniques.applying.target import Target


def _apply(target: Target, action: Action) -> None:
    for path in action.modules:
        target.wrap_forward(path, _run_checkpointed)


def _run_checkpointed(forward: Any, *arguments: Any, **keywords: Any) -> Any:
    import torch
    from torch.utils.checkpoint import checkpoint

    if not torch.is_grad_enabled():
        return forward(*arguments, **keywords)
    if torch.compiler.is_compiling():
        # A compiled graph recomputes without side effects.
        return checkpoint(forward, *arguments, use_reentrant=False, **keywords)
    return checkpointed(Rerun(forward), arguments, keywords)


CHECKPOINT = Technique(
    name="checkpoint",
    does="saves only the inputs of modules, and runs the modules again in backward",
    precondition="the second run of a module computes the same as the first, without side effects",
    proof=(
        "versions of inputs, parameters, buffers and attributes that are tensors are compared; "
        "attributes and random number generators are restored for the second run"
    ),
    semantics=Semantics.SAME,
    place=Place.MODULES,
    reference="https://docs.pytorch.org/docs/stable/checkpoint.html",
    apply=_apply,
)
