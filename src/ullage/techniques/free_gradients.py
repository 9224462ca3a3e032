"""Gradients freed right after the step that used them, rather than kept through the next forward.

`zero_grad` then always frees (set_to_none=True), and whether the program would have freed them at
all is checked: one that lets gradients add up over steps is refused at its next backward.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ullage.errors import PlanError
from ullage.techniques.technique import Action, Place, Semantics, Technique

if TYPE_CHECKING:
    from ullage.techniques.changes import Changes
    from ullage.techniques.target import Target


def _apply(target: Target, _: Action) -> None:
    freed = _Freed(target.changes)
    for owner in (target.model, *target.optimizers):
        target.changes.set(owner, "zero_grad", freed.zeroing(owner.zero_grad))
    for optimizer in target.optimizers:
        target.changes.hook(optimizer.register_step_post_hook(freed.free))


class _Freed:
    """Parameters whose gradients were freed and not yet zeroed by the program."""

    def __init__(self, changes: Changes) -> None:
        self._waiting: dict[Any, Any] = {}
        changes.on_undo(self._forget)

    def free(self, optimizer: Any, *_: Any) -> None:
        """Frees the gradients of an optimizer that has stepped."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad = None
                    if parameter not in self._waiting:
                        hook = parameter.register_post_accumulate_grad_hook(_refuse)
                        self._waiting[parameter] = hook

    def zeroing(self, zero_grad: Any) -> Any:
        """A `zero_grad` that frees."""

        @functools.wraps(zero_grad)
        def freeing(*_: Any, **__: Any) -> None:
            self._forget()
            zero_grad(set_to_none=True)

        return freeing

    def _forget(self) -> None:
        for hook in self._waiting.values():
            hook.remove()
        self._waiting.clear()


def _refuse(_: Any) -> None:
    raise PlanError(
        "'free_gradients' does not go with this program: backward ran after a step without a call "
        "of zero_grad() between, so that gradients were to add up over steps"
    )


FREE_GRADIENTS = Technique(
    name="free_gradients",
    does="frees gradients right after the optimizer's step rather than before the next backward",
    semantics=Semantics.SAME,
    place=Place.OPTIMIZER,
    reference="https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html",
    apply=_apply,
)
