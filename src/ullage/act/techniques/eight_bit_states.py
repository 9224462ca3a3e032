"""States of Adam or AdamW in eight bits, by bitsandbytes.

The optimizer remains the same object with another class, so that schedulers and other objects that
refer to it keep working. States of tensors with fewer than 4,096 elements stay in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.act.techniques.technique import Action, Place, Semantics, Technique

if TYPE_CHECKING:
    from ullage.act.techniques.applying.changes import Changes
    from ullage.act.techniques.applying.target import Target

# Elements that share a scale: bitsandbytes/optim/optimizer.py.
_BLOCK = 256
_KEYS = ("lr", "betas", "eps", "weight_decay")
_UNKNOWN = ("amsgrad", "maximize", "differentiable", "capturable")


def _apply(target: Target, _: Action) -> None:
    from torch.optim import Adam, AdamW

    for optimizer in target.optimizers:
        if type(optimizer) not in {Adam, AdamW}:
            EIGHT_BIT_STATES.refuse(
                f"the optimizer is {type(optimizer).__name__}; expected Adam or AdamW"
            )
        if any(len(state) for state in optimizer.state.values()):
            EIGHT_BIT_STATES.refuse(
                "the optimizer has stepped; apply the plan before the first step"
            )
        for group in optimizer.param_groups:
            _check(optimizer, group)
    for optimizer in target.optimizers:
        _turn(optimizer, target.changes)


def _check(optimizer: Any, group: dict[str, Any]) -> None:
    set_keys = [key for key in _UNKNOWN if group.get(key)]
    if set_keys:
        EIGHT_BIT_STATES.refuse(f"bitsandbytes does not support {set_keys[0]}=True")
    decoupled = group.get("decoupled_weight_decay", type(optimizer).__name__ == "AdamW")
    if group["weight_decay"] and not decoupled:
        EIGHT_BIT_STATES.refuse(
            "Adam adds weight decay to the gradient, and bitsandbytes applies it as AdamW does"
        )
    if hasattr(group["lr"], "device"):
        EIGHT_BIT_STATES.refuse("the learning rate is a tensor; pass a number")


def _turn(optimizer: Any, changes: Changes) -> None:
    """Turns an optimizer into one of bitsandbytes, and keeps its hooks and attributes."""
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as error:
        EIGHT_BIT_STATES.refuse(f"bitsandbytes cannot be imported ({error}); install it")
    groups = [
        {"params": group["params"], **{key: group[key] for key in _KEYS}}
        for group in optimizer.param_groups
    ]
    theirs = vars(AdamW8bit(groups))
    added = [name for name in theirs if name not in vars(optimizer)]
    changes.on_undo(_turn_back, optimizer, type(optimizer), added)
    changes.set(optimizer, "defaults", {**optimizer.defaults, **theirs["defaults"]})
    if "step" in vars(optimizer):
        changes.set(optimizer, "step", _counted(optimizer, AdamW8bit.step))
    optimizer.__class__ = AdamW8bit
    vars(optimizer).update({name: theirs[name] for name in added})
    for ours, group in zip(optimizer.param_groups, theirs["param_groups"], strict=True):
        for key, value in group.items():
            if key not in ours:
                ours[key] = value
                changes.on_undo(ours.pop, key)


def _turn_back(optimizer: Any, kind: type[Any], added: list[str]) -> None:
    from bitsandbytes.functional import dequantize_blockwise
    from torch import tensor

    optimizer.__class__ = kind
    for name in added:
        delattr(optimizer, name)
    for parameter, state in optimizer.state.items():
        if "state1" not in state:
            continue
        wide: dict[str, Any] = {"step": tensor(float(state["step"]))}
        for number, name in ((1, "exp_avg"), (2, "exp_avg_sq")):
            values = state[f"state{number}"]
            if f"absmax{number}" in state:
                absmax, code = state[f"absmax{number}"], state[f"qmap{number}"]
                values = dequantize_blockwise(values, absmax=absmax, code=code, blocksize=_BLOCK)
            wide[name] = values.to(parameter.dtype)
        optimizer.state[parameter] = wide


def _counted(optimizer: Any, step: Any) -> Any:
    """A step that records its calls, for schedulers that wrapped the step of the old class."""

    def counted(*arguments: Any, **keywords: Any) -> Any:
        optimizer._opt_called = True
        return step(optimizer, *arguments, **keywords)

    counted._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return counted


EIGHT_BIT_STATES = Technique(
    name="eight_bit_states",
    does="stores the states of Adam or AdamW in eight bits, quantised in blocks (bitsandbytes)",
    precondition="the optimizer is Adam or AdamW",
    proof="class and settings of the optimizer are checked",
    semantics=Semantics.ROUNDING,
    place=Place.OPTIMIZER,
    reference="https://huggingface.co/docs/bitsandbytes/optimizers",
    apply=_apply,
    needs=("bitsandbytes",),
    excludes=("optimizer_in_backward", "optimizer_offload", "bf16_states", "optimizer_kernel"),
)
