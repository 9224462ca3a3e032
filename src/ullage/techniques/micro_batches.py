"""A batch in parts, one after another, for models that return their loss.

Each part runs forward and backward by itself while the program calls the model; backward of the
program then hands the summed gradients to the parameters. The loss is that of the whole batch: the
parts' losses count by their rows, or by their labels where the model is given `labels` (-100 counts
for none). Exact up to the order of sums where rows do not meet: without batch statistics, and
without random numbers, which are drawn for each part.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from ullage.errors import PlanError
from ullage.techniques.technique import Action, Place, Semantics, Setting, Technique

if TYPE_CHECKING:
    from ullage.techniques.target import Target

_IGNORED = -100
_CAUSAL_LOSS = "ForCausalLMLoss"


def _apply(target: Target, action: Action) -> None:
    for path, module in target.model.named_modules():
        if getattr(module, "track_running_stats", False):
            _refuse(f"{path} has statistics of its batches")
    num_parts = int(MICRO_BATCHES.value_of(action, "num_parts"))
    target.wrap_forward("", functools.partial(_run, num_parts))


def _run(num_parts: int, forward: Any, *arguments: Any, **named: Any) -> Any:
    import torch

    if not torch.is_grad_enabled():
        return forward(*arguments, **named)
    model = forward.__self__
    parameters = [one for one in model.parameters() if one.requires_grad]
    summed: list[Any] = [None] * len(parameters)
    total: Any = 0.0
    outputs: Any = None
    parts = list(_split((arguments, named), num_parts))
    for (some, others), weight in zip(parts, _weights(forward, parts), strict=True):
        outputs = forward(*some, **others)
        loss = _loss_of(outputs) * weight
        total = total + loss.detach()
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        summed = [_sum(one, more) for one, more in zip(summed, found, strict=True)]
    used = [index for index, one in enumerate(summed) if one is not None]
    result = _handed_on()(
        total, [summed[index] for index in used], *(parameters[index] for index in used)
    )
    return _with_loss(outputs, result)


@functools.cache
def _handed_on() -> Any:
    """A loss whose backward hands gradients that are known already to the parameters."""
    import torch

    class HandedOn(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, loss: Any, gradients: list[Any], *_: Any) -> Any:
            context.gradients = gradients
            return loss.clone()

        @staticmethod
        def backward(context: Any, factor: Any) -> Any:
            gradients, context.gradients = context.gradients, None
            if gradients is None:
                _refuse("backward runs twice through the same loss")
            return None, None, *(one.mul_(factor) for one in gradients)

    return HandedOn.apply


def _split(given: Any, num_parts: int) -> Iterator[Any]:
    """Arguments with those tensors in parts that have the rows of the first of them."""
    import torch

    tensors = [one for one in _leaves(given) if isinstance(one, torch.Tensor) and one.dim()]
    if not tensors:
        _refuse("the model is given no tensor")
    num_rows = tensors[0].shape[0]
    size = -(-num_rows // num_parts)
    for start in range(0, num_rows, size):
        yield _mapped(
            given,
            lambda one, start=start: (
                one[start : start + size]
                if isinstance(one, torch.Tensor) and one.dim() and one.shape[0] == num_rows
                else one
            ),
        )


def _weights(forward: Any, parts: list[Any]) -> list[Any]:
    """The share of each part in the loss of the batch, by its labels or its rows."""
    import torch

    loss = getattr(forward.__self__, "loss_function", None)
    counts: list[Any] = []
    for some, others in parts:
        if others.get("num_items_in_batch") is not None:
            # transformers' Trainer: each loss is a sum over labels, by the number in all.
            return [1.0] * len(parts)
        labels = inspect.signature(forward).bind_partial(*some, **others).arguments.get("labels")
        if labels is None:
            (rows, *_) = (one for one in _leaves((some, others)) if isinstance(one, torch.Tensor))
            counts.append(rows.shape[0])
        else:
            # Causal losses are of each label but the first.
            causal = getattr(loss, "__name__", None) == _CAUSAL_LOSS
            counts.append(((labels[..., 1:] if causal else labels) != _IGNORED).sum())
    total = sum(counts)
    return [one / total for one in counts]


def _loss_of(outputs: Any) -> Any:
    loss: Any = outputs.get("loss") if isinstance(outputs, dict) else outputs
    if not hasattr(loss, "requires_grad") or loss.dim() or not loss.requires_grad:
        _refuse("the model does not return its loss, or a mapping with `loss`")
    return loss


def _with_loss(outputs: Any, loss: Any) -> Any:
    """What the model returned, with the loss of the batch, and nothing else of the last part."""
    if not isinstance(outputs, dict):
        return loss
    for name in list(outputs):
        outputs[name] = loss if name == "loss" else None
    return outputs


def _sum(one: Any, more: Any) -> Any:
    if one is None or more is None:
        return more if one is None else one
    return one.add_(more)


def _leaves(given: Any) -> Iterator[Any]:
    if isinstance(given, tuple | list):
        for one in given:
            yield from _leaves(one)
    elif isinstance(given, dict):
        yield from _leaves(list(given.values()))
    else:
        yield given


def _mapped(given: Any, change: Any) -> Any:
    if type(given) in {tuple, list}:
        return type(given)(_mapped(one, change) for one in given)
    if type(given) is dict:
        return {name: _mapped(one, change) for name, one in given.items()}
    return change(given)


def _refuse(why: str) -> NoReturn:
    raise PlanError(f"'micro_batches' does not go with this program: {why}")


MICRO_BATCHES = Technique(
    name="micro_batches",
    does="runs a batch in parts, forward and backward, for models that return their loss",
    semantics=Semantics.TRAINING,
    place=Place.PROGRAM,
    reference="https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation",
    apply=_apply,
    settings={"num_parts": Setting(default=2, what="parts of a batch", least=2)},
    variants=({"num_parts": 4}, {"num_parts": 8}),
)
