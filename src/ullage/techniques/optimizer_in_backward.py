"""The optimizer's step inside backward: each gradient is used as soon as it is whole, and freed.

After backward no gradient is left, so that the optimizer's own `step` finds nothing to do. What
needs all gradients at once, or gradients of several backward passes, is refused when it is tried.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from ullage.techniques.optimizer_parts import check_steps_in_parts, step_some
from ullage.techniques.technique import Action, Place, Semantics, Technique

if TYPE_CHECKING:
    from ullage.techniques.changes import Changes
    from ullage.techniques.target import Target

_NAME = "optimizer_in_backward"


def _apply(target: Target, _: Action) -> None:
    for optimizer in target.optimizers:
        check_steps_in_parts(optimizer, _NAME)
        _refuse_unreduced(optimizer)
    _refuse_what_needs_all_gradients(target.changes)
    for optimizer in target.optimizers:
        _step_in_backward(optimizer, target.changes)


def _step_in_backward(optimizer: Any, changes: Changes) -> None:
    stepped: set[Any] = set()
    group_of = {
        parameter: group
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad
    }

    def step(parameter: Any) -> None:
        if parameter in stepped:
            OPTIMIZER_IN_BACKWARD.refuse(
                "a second backward came before the optimizer's step: gradients accumulate"
            )
        stepped.add(parameter)
        step_some(optimizer, group_of[parameter], (parameter,), optimizer.state)
        parameter.grad = None

    for parameter in group_of:
        changes.hook(parameter.register_post_accumulate_grad_hook(step))
    changes.hook(optimizer.register_step_post_hook(lambda *_: stepped.clear()))


def _refuse_unreduced(optimizer: Any) -> None:
    """DDP sums gradients over ranks after they were accumulated, FSDP2 (DTensor) before."""
    import torch

    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return
    held: Iterable[Any] = (one for group in optimizer.param_groups for one in group["params"])
    if distributed.get_world_size() > 1 and not all(hasattr(one, "device_mesh") for one in held):
        OPTIMIZER_IN_BACKWARD.refuse(
            "gradients are summed over ranks after backward (DDP); shard with FSDP2"
        )


def _refuse_what_needs_all_gradients(changes: Changes) -> None:
    from torch.amp.grad_scaler import GradScaler
    from torch.nn.utils import clip_grad

    def clip(*_: Any, **__: Any) -> NoReturn:
        OPTIMIZER_IN_BACKWARD.refuse("gradients are clipped, for which all must be there")

    # What the public functions call, which programs may have imported before.
    changes.set(clip_grad, "_get_total_norm", clip)
    changes.set(clip_grad, "_group_tensors_by_device_and_dtype", clip)
    scale = GradScaler.scale

    def scaled(self: Any, outputs: Any) -> Any:
        if self.is_enabled():
            OPTIMIZER_IN_BACKWARD.refuse("a GradScaler looks through all gradients before the step")
        return scale(self, outputs)

    changes.set(GradScaler, "scale", scaled)


OPTIMIZER_IN_BACKWARD = Technique(
    name=_NAME,
    does="updates each parameter inside backward as soon as its gradient is whole, and frees it",
    semantics=Semantics.SAME,
    place=Place.OPTIMIZER,
    reference="https://docs.pytorch.org/tutorials/intermediate/optimizer_step_in_backward_tutorial.html",
    apply=_apply,
    excludes=("optimizer_offload", "bf16_states", "eight_bit_states", "free_gradients"),
)
