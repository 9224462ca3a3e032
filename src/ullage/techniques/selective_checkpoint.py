"""Activation checkpointing of modules that keeps the results of operations that are dear.

What a policy names is saved; the rest is computed again in backward. Saved always are choices of
experts (`topk`), which must not come out otherwise, and collectives, which all ranks would have to
repeat. Never saved is what draws random numbers: the second run draws all of them again, from the
same state, and one that was left out would shift those after it.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from ullage.errors import PlanError
from ullage.techniques.rerun import Rerun
from ullage.techniques.technique import Action, Place, Semantics, Setting, Technique

if TYPE_CHECKING:
    from ullage.techniques.target import Target

_MATMULS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_mm", "_grouped_mm")
_ATTENTIONS = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)
_ALWAYS = ("topk",)
_COLLECTIVES = "_c10d_functional"


class _Policy:
    """Decides for one call of a module, in the same way in both runs."""

    def __init__(self, saves: str) -> None:
        self._saves = saves
        self._num_matmuls = {False: 0, True: 0}

    def __call__(self, context: Any, operation: Any, *arguments: Any, **named: Any) -> Any:
        from torch.utils.checkpoint import CheckpointPolicy

        namespace, _, name = operation._schema.name.partition("::")
        is_saved = (
            self._is_dear(name, context.is_recompute)
            if namespace == "aten"
            else namespace == _COLLECTIVES and name != "wait_tensor"
        )
        if is_saved and not _draws(operation, arguments, named):
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    def _is_dear(self, name: str, is_recompute: bool) -> bool:  # noqa: FBT001 - as torch has it
        if name in _ALWAYS:
            return True
        if name in _ATTENTIONS:
            return self._saves in {"attention", "matmul_and_attention"}
        if name not in _MATMULS:
            return False
        self._num_matmuls[is_recompute] += 1
        if self._saves == "second_matmul":
            return self._num_matmuls[is_recompute] % 2 == 1
        return self._saves in {"matmul", "matmul_and_attention"}


def _draws(operation: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether an operation draws random numbers with these arguments."""
    import torch

    if torch.Tag.nondeterministic_seeded not in operation.tags:
        return False
    schema = operation._schema.arguments
    defaults = {one.name: one.default_value for one in schema}  # the dispatcher leaves them out
    given = dict(zip((one.name for one in schema), arguments, strict=False))
    return bool((defaults | given | named).get("dropout_p", 1.0))


def _apply(target: Target, action: Action) -> None:
    from torch.utils.checkpoint import checkpoint

    saves = str(SELECTIVE_CHECKPOINT.value_of(action, "saves"))
    # Made once: the compiler takes another object for another program, and compiles it anew.
    how = {"use_reentrant": False, "context_fn": functools.partial(_contexts, saves)}
    how |= _offloaded_too(checkpoint)
    for path in action.modules:
        target.wrap_forward(path, functools.partial(_run, how))


def _run(how: dict[str, Any], forward: Any, *arguments: Any, **named: Any) -> Any:
    import torch
    from torch.utils.checkpoint import checkpoint

    if not torch.is_grad_enabled():
        return forward(*arguments, **named)
    run = (
        forward if torch.compiler.is_compiling() else _Explained(Rerun(forward, keeps_results=True))
    )
    return checkpoint(run, *arguments, **how, **named)


def _contexts(saves: str) -> Any:
    """Of both runs of one call."""
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    return create_selective_checkpoint_contexts(_Policy(saves))


def _offloaded_too(checkpoint: Any) -> dict[str, bool]:
    """From torch 2.14 on, what is kept can be offloaded by who offloads around it."""
    name = "respect_saved_tensors_hooks"
    return {name: True} if name in inspect.signature(checkpoint).parameters else {}


class _Explained:
    """A forward whose second run says why it cannot use what was saved."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        try:
            return self._run(*arguments, **named)
        except RuntimeError as error:
            if "has been mutated" not in str(error):  # torch has no class of its own for it
                raise
            raise PlanError(
                "'selective_checkpoint' does not go with a module of this program, which changes "
                "in place what is saved; use 'checkpoint' for it"
            ) from None


SELECTIVE_CHECKPOINT = Technique(
    name="selective_checkpoint",
    does="keeps the inputs of modules and what their dear operations give, and computes the rest "
    "again in backward",
    semantics=Semantics.SAME,
    place=Place.MODULES,
    reference="https://docs.pytorch.org/docs/stable/checkpoint.html#torch.utils.checkpoint.create_selective_checkpoint_contexts",
    apply=_apply,
    settings={
        "saves": Setting(
            default="matmul_and_attention",
            what="which operations' results are kept",
            choices=("matmul_and_attention", "matmul", "attention", "second_matmul"),
        )
    },
    excludes=("checkpoint", "offload_activations", "tiled_mlp"),
    variants=({"saves": "attention"}, {"saves": "second_matmul"}),
)
