"""The implementation of an optimizer's step: fused, one tensor at a time, or all tensors at once.

The step over all tensors at once (foreach) is torch's default on GPUs. Its temporaries are as large
as all parameters. A loop has temporaries of one parameter, and a fused kernel has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.act.techniques.technique import Action, Place, Semantics, Setting, Technique
from ullage.ground.errors import PlanError

if TYPE_CHECKING:
    from ullage.act.techniques.applying.target import Target


def _apply(target: Target, action: Action) -> None:
    kernel = str(OPTIMIZER_KERNEL.value_of(action, "kernel"))
    for optimizer in target.optimizers:
        _check(optimizer, kernel)
    for optimizer in target.optimizers:
        target.changes.on_undo(_place_steps, optimizer)
        # The constructor's note that the first fused step has to check the parameters.
        target.changes.set_item(vars(optimizer), "_need_device_dtype_check_for_fused", value=True)
        for keys in (optimizer.defaults, *optimizer.param_groups):
            for key, value in (("fused", kernel == "fused"), ("foreach", False)):
                if key in keys:
                    target.changes.set_item(keys, key, value)
        _place_steps(optimizer)


def _check(optimizer: Any, kernel: str) -> None:
    kind = type(optimizer)
    if not kind.__module__.startswith("torch.optim."):
        raise PlanError(
            f"'optimizer_kernel': the steps of {kind.__module__}.{kind.__qualname__} may compute "
            "different results; expected an optimizer of torch.optim"
        )
    has = [key for key in ("fused", "foreach") if key in optimizer.defaults]
    if "foreach" not in has or (kernel == "fused" and "fused" not in has):
        raise PlanError(
            f"'optimizer_kernel': {type(optimizer).__name__} has no {kernel} step; it has: "
            f"{', '.join(has) or 'one step only'}"
        )
    if kernel == "fused" and optimizer.defaults.get("differentiable"):
        raise PlanError("'optimizer_kernel': a differentiable optimizer has no fused step")


def _place_steps(optimizer: Any) -> None:
    """Moves step counts to their parameters if a kernel reads them, else to the CPU."""
    for group in optimizer.param_groups:
        on_device = group.get("fused") or group.get("capturable")
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            count = state.get("step")
            if hasattr(count, "to"):
                state["step"] = count.to(parameter.device if on_device else "cpu")


OPTIMIZER_KERNEL = Technique(
    name="optimizer_kernel",
    does="steps with a fused kernel or tensor by tensor, without temporaries for all parameters",
    precondition="the kernels of the optimizer compute the same",
    proof="its class must be in torch.optim and have that kernel",
    semantics=Semantics.SAME,
    place=Place.OPTIMIZER,
    reference="https://docs.pytorch.org/docs/stable/optim.html#algorithms",
    apply=_apply,
    settings={
        "kernel": Setting(
            default="fused",
            what="kernel of the step; the fused one differs in the last bit",
            choices=("fused", "for_loop"),
        )
    },
    excludes=("eight_bit_states",),
    variants=({"kernel": "for_loop"},),
    reorders=True,
)
