"""Activation checkpointing of chosen modules: they keep their inputs, and run again in backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.techniques.means.rerun import Rerun, checkpointed
from ullage.techniques.technique import Action, Place, Semantics, Technique

if TYPE_CHECKING:
    from ullage.techniques.applying.target import Target


def _apply(target: Target, action: Action) -> None:
    for path in action.modules:
        target.wrap_forward(path, _run_checkpointed)


def _run_checkpointed(forward: Any, *arguments: Any, **keywords: Any) -> Any:
    """A forward whose activations are computed again when backward needs them."""
    import torch
    from torch.utils.checkpoint import checkpoint

    if not torch.is_grad_enabled():
        return forward(*arguments, **keywords)
    if torch.compiler.is_compiling():
        # A compiled graph has its effects once: it computes again without them.
        return checkpoint(forward, *arguments, use_reentrant=False, **keywords)
    return checkpointed(Rerun(forward), arguments, keywords)


CHECKPOINT = Technique(
    name="checkpoint",
    does="keeps only the inputs of modules, and runs them again in backward",
    precondition="a second run of a module computes what the first did, and leaves nothing behind",
    proof=(
        "versions of inputs, parameters, buffers and tensors that it keeps are compared; "
        "attributes and random numbers are put back for the second run"
    ),
    semantics=Semantics.SAME,
    place=Place.MODULES,
    reference="https://docs.pytorch.org/docs/stable/checkpoint.html",
    apply=_apply,
)
