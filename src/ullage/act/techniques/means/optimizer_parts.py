"""Steps a torch optimizer for some of its parameters at a time.

The optimizer's own class does the arithmetic, with the current settings of the parameters' group.
Every optimizer in torch.optim except LBFGS updates each parameter independently, so the parts
together equal the full step bit for bit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ullage.ground.errors import PlanError


def parameters_of(optimizer: Any) -> list[Any]:
    """The parameters of an optimizer, group by group."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def check_steps_in_parts(optimizer: Any, technique: str) -> None:
    """Raises PlanError if an optimizer cannot be stepped in parts."""
    from torch.optim import LBFGS

    kind = type(optimizer)
    known = kind.__module__.startswith("torch.optim.") and not isinstance(optimizer, LBFGS)
    if not known or not hasattr(kind.step, "__wrapped__"):
        raise PlanError(
            f"{technique!r} steps an optimizer in parts, which is only correct for those of "
            f"torch.optim except LBFGS; this is {kind.__module__}.{kind.__qualname__}"
        )


def step_some(
    optimizer: Any,
    group: Mapping[str, Any],
    parameters: Sequence[Any],
    states: Mapping[Any, dict[str, Any]],
) -> None:
    """Updates some parameters of one group, as the optimizer's step would.

    Args:
        optimizer: one that `check_steps_in_parts` accepts.
        group: the group of its `param_groups` that has the parameters.
        parameters: those with a gradient are updated.
        states: the states of the parameters; new states are added to it.
    """
    partial_optimizer = object.__new__(type(optimizer))
    vars(partial_optimizer).update(
        vars(optimizer),
        param_groups=[{**group, "params": list(parameters)}],
        state=states,
        _optimizer_step_pre_hooks=OrderedDict(),
        _optimizer_step_post_hooks=OrderedDict(),
    )
    # Wrappers of schedulers and global hooks are for the full step only.
    vars(partial_optimizer).pop("step", None)
    type(optimizer).step.__wrapped__(partial_optimizer)


def parts(optimizer: Any, limit_bytes: int) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """Parts of the parameters that have a gradient: a group and some of its parameters.

    The parameters of a part have at most `limit_bytes` in total, or a part is one larger parameter.
    """
    for group in optimizer.param_groups:
        part: list[Any] = []
        part_bytes = 0
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            size = parameter.numel() * parameter.element_size()
            if part and part_bytes + size > limit_bytes:
                yield group, part
                part, part_bytes = [], 0
            part.append(parameter)
            part_bytes += size
        if part:
            yield group, part
