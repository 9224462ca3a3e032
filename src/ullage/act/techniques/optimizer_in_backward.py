"""The optimizer steps inside backward: each gradient is used as soon as it is complete, and then
freed.

After backward no gradient is left, so the optimizer's own `step` has nothing to do. Whatever needs
all gradients at once, or gradients of several backward passes, is refused when the program tries
it. So is everything that happens between backward and the step and could change the result: reading
gradients, running the model, changing parameters or the learning rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from ullage.act.techniques.means.gradient_use import GradientUse
from ullage.act.techniques.means.optimizer_parts import (
    check_steps_in_parts,
    parameters_of,
    step_some,
)
from ullage.act.techniques.technique import Action, Place, Semantics, Technique

if TYPE_CHECKING:
    from ullage.act.techniques.applying.changes import Changes
    from ullage.act.techniques.applying.target import Target

_NAME = "optimizer_in_backward"


def _apply(target: Target, _: Action) -> None:
    for optimizer in target.optimizers:
        check_steps_in_parts(optimizer, _NAME)
        _refuse_unreduced(optimizer)
    _refuse_what_needs_all_gradients(target.changes)
    use = GradientUse(target, OPTIMIZER_IN_BACKWARD.refuse)
    steppers = [_Stepper(optimizer, use) for optimizer in target.optimizers]
    for stepper in steppers:
        stepper.apply(target.changes)
    use.watch_steps(target)

    def check_and_run(forward: Any, *arguments: Any, **keywords: Any) -> Any:
        for stepper in steppers:
            stepper.check_ended("the model runs")
        return forward(*arguments, **keywords)

    target.wrap_forward("", check_and_run)


class _Stepper:
    """An optimizer whose parameters are stepped in backward.

    What the program does between backward and the optimizer's step now comes after the step instead
    of before. It is refused if this could change the result.
    """

    def __init__(self, optimizer: Any, use: GradientUse) -> None:
        self._optimizer = optimizer
        self._use = use
        # The version of each parameter after its step, and the settings of its group.
        self._stepped: dict[Any, int] = {}
        self._settings: dict[int, Any] = {}
        self._group_of = {
            parameter: group
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad
        }

    def apply(self, changes: Changes) -> None:
        for parameter in self._group_of:
            changes.hook(parameter.register_post_accumulate_grad_hook(self._step))
        changes.hook(self._optimizer.register_step_pre_hook(self._check_unchanged))
        changes.hook(self._optimizer.register_step_post_hook(self._end))
        self._use.on_zero(lambda: self.check_ended("gradients are zeroed"))

    def check_ended(self, what: str) -> None:
        """Raises PlanError if the optimizer's own step has not run yet."""
        if self._stepped:
            OPTIMIZER_IN_BACKWARD.refuse(
                f"{what} after backward and before the optimizer's step, for example because "
                "gradients accumulate or a step is skipped"
            )

    def _step(self, parameter: Any) -> None:
        if parameter in self._stepped:
            OPTIMIZER_IN_BACKWARD.refuse(
                "a second backward runs before the optimizer's step: gradients accumulate"
            )
        if self._use.is_used(parameter):
            return  # GradientUse refuses it
        group = self._group_of[parameter]
        self._settings[id(group)] = _settings(group)
        step_some(self._optimizer, group, (parameter,), self._optimizer.state)
        self._use.free(parameter)
        self._stepped[parameter] = parameter._version

    def _check_unchanged(self, *_: Any) -> None:
        """Runs before the optimizer's own step."""
        for group in self._optimizer.param_groups:
            if self._settings.get(id(group), _settings(group)) != _settings(group):
                OPTIMIZER_IN_BACKWARD.refuse(
                    "the settings of the optimizer change between backward and its step"
                )
        if any(parameter._version != version for parameter, version in self._stepped.items()):
            OPTIMIZER_IN_BACKWARD.refuse(
                "parameters change between backward and the optimizer's step"
            )

    def _end(self, *_: Any) -> None:
        for parameter in self._group_of:
            if parameter.grad is not None:  # zeros, by which it was stepped
                self._use.free(parameter)
        self._stepped.clear()
        self._settings.clear()


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a group; of a tensor, its identity and version."""
    return {
        name: (id(value), value._version) if hasattr(value, "_version") else value
        for name, value in group.items()
        if name != "params"
    }


def _refuse_unreduced(optimizer: Any) -> None:
    """Refuses DDP: it reduces gradients after they are accumulated, FSDP2 (DTensor) before."""
    import torch

    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return
    is_reduced = all(hasattr(parameter, "device_mesh") for parameter in parameters_of(optimizer))
    if distributed.get_world_size() > 1 and not is_reduced:
        OPTIMIZER_IN_BACKWARD.refuse(
            "gradients are reduced over ranks after backward (DDP); use FSDP2"
        )


def _refuse_what_needs_all_gradients(changes: Changes) -> None:
    from torch.amp.grad_scaler import GradScaler
    from torch.nn.utils import clip_grad

    def clip(*_: Any, **__: Any) -> NoReturn:
        OPTIMIZER_IN_BACKWARD.refuse("gradients are clipped, which needs all of them at once")

    # Internal functions: programs may have imported the public ones already.
    changes.set(clip_grad, "_get_total_norm", clip)
    changes.set(clip_grad, "_group_tensors_by_device_and_dtype", clip)
    scale = GradScaler.scale

    def scaled(self: Any, outputs: Any) -> Any:
        if self.is_enabled():
            OPTIMIZER_IN_BACKWARD.refuse("a GradScaler checks all gradients before the step")
        return scale(self, outputs)

    changes.set(GradScaler, "scale", scaled)


OPTIMIZER_IN_BACKWARD = Technique(
    name=_NAME,
    does="updates each parameter in backward as soon as its gradient is complete, and frees it",
    precondition=(
        "nothing uses gradients or parameters between backward and step, and there is one backward "
        "per step"
    ),
    proof=(
        "reads, changes of parameters and settings, calls of the model, clipping and scaling "
        "are watched at every step; the optimizer's class must be in torch.optim and update "
        "each parameter independently"
    ),
    semantics=Semantics.SAME,
    place=Place.OPTIMIZER,
    reference="https://docs.pytorch.org/tutorials/intermediate/optimizer_step_in_backward_tutorial.html",
    apply=_apply,
    excludes=("optimizer_offload", "bf16_states", "eight_bit_states", "free_gradients"),
)
