"""A check of a step function: are the gradients of a batch's parts those of the whole?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ullage.act.guard.batch_split import Part, Split, divide, split_rows
from ullage.act.techniques.applying.apply import unwrap_optimizers
from ullage.ground.errors import GuardError, SpecError


@dataclass(frozen=True, slots=True)
class SplitCheck:
    """How far the gradients of a batch in two parts are from those of the whole.

    Attributes:
        distance: the largest difference of a parameter's gradient, as a share of the largest number
            in that gradient.
        parameter: where it is.
    """

    distance: float
    parameter: str


def check_split(
    train_step: Callable[[Sequence[Part]], Any],
    batch: Any,
    model: Any,
    optimizer: Any,
    *,
    split: Split | None = None,
    tolerance: float = 0.01,
) -> SplitCheck:
    """Runs a step function of `Guard.step_in_parts` with a batch whole and in two parts, and
    compares the gradients that the optimizer gets. Call it before a training, with a small batch.

    Modules are in evaluation, as dropout draws for each part by itself. Parameters, buffers,
    optimizer states and generators are copied to the host before, and copied back after.

    Args:
        train_step: gets pairs of a part and its weight.
        batch: of at least two rows.
        model: the `nn.Module`.
        optimizer: a `torch.optim.Optimizer`, or a list of several.
        split: as for `step_in_parts`.
        tolerance: the distance above which the step is refused; rounding in bfloat16 is about
            0.004.

    Raises:
        GuardError: the gradients differ by more: the loss is not a mean with these weights. Or
            there are gradients of an earlier micro-batch, or the host has no memory for the copies.
        SpecError: the batch is not split in two, or the step calls no optimizer.
    """
    from ullage.act.guard.batches.kept_state import KeptState
    from ullage.act.guard.guarded_program import parameters_of
    from ullage.act.guard.state.state import State

    parts = divide(batch, split or split_rows, 2)
    if len(parts) != 2:
        raise SpecError("the batch is not split in two; expected at least two rows")
    optimizers = unwrap_optimizers(optimizer)
    parameters = parameters_of(model, optimizers)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    state = KeptState(model, optimizers, State(model, optimizers, parameters))
    gradients = []
    try:
        for each in ([(batch, 1.0)], parts):
            model.eval()
            gradients.append(_gradients(train_step, each, optimizers))
            state.restore()
    finally:
        state.restore()
    whole, in_parts = gradients
    distances = {key: _distance(value, in_parts.get(key)) for key, value in whole.items()}
    worst = max(distances, key=lambda key: distances[key])
    check = SplitCheck(distances[worst], names.get(worst, "a parameter of the optimizer"))
    if not check.distance <= tolerance:
        raise GuardError(
            f"the gradient of {check.parameter!r} from two parts differs by {check.distance:.2g} "
            f"of its largest number from that of the whole batch; expected at most {tolerance:g}. "
            "The weights are not those of the loss, or it is not a mean over the rows"
        )
    return check


def _gradients(
    train_step: Callable[[Sequence[Part]], Any], parts: Sequence[Part], optimizers: Sequence[Any]
) -> dict[int, Any]:
    """Each parameter's gradient when the optimizer is called, by its identity."""
    gradients: dict[int, Any] = {}

    def read(optimizer: Any, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradients[id(parameter)] = parameter.grad.detach().to("cpu", copy=True)

    hooks = [each.register_step_pre_hook(read) for each in optimizers]
    try:
        train_step(parts)
    finally:
        for hook in hooks:
            hook.remove()
    if not gradients:
        raise SpecError(
            "the step has called no optimizer with gradients; there is nothing to check"
        )
    return gradients


def _distance(gradient: Any, other: Any) -> float:
    """The largest difference of two gradients, as a share of the first one's largest number."""
    if other is None or gradient.shape != other.shape:
        return float("inf")
    gradient, other = gradient.double(), other.double()
    largest = float(gradient.abs().max())
    difference = float((gradient - other).abs().max())
    return difference / largest if largest else (0.0 if difference == 0 else float("inf"))
