"""Gradients are freed right after the step that used them, instead of during the next forward.

`zero_grad` then always frees. gradient_use.py watches that the program would have freed or zeroed
the gradients before the next backward, and that it does not read them in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.act.techniques.means.gradient_use import GradientUse
from ullage.act.techniques.technique import Action, Place, Semantics, Technique

if TYPE_CHECKING:
    from ullage.act.techniques.applying.target import Target


def _apply(target: Target, _: Action) -> None:
    use = GradientUse(target, FREE_GRADIENTS.refuse)

    def free(optimizer: Any, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    use.free(parameter)

    for optimizer in target.optimizers:
        target.changes.hook(optimizer.register_step_post_hook(free))
    use.watch_steps(target)


FREE_GRADIENTS = Technique(
    name="free_gradients",
    does="frees gradients right after the optimizer's step, not before the next backward",
    precondition=(
        "the program zeroes gradients between a step and the next backward, and does not read them "
        "in between"
    ),
    proof="reads, steps, zero_grad and backward are watched during the whole training",
    semantics=Semantics.SAME,
    place=Place.OPTIMIZER,
    reference="https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html",
    apply=_apply,
)
