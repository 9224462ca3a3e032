"""Runs a batch in parts, one after another.

If the model returns its loss, each part runs forward and backward while the program calls the
model. The program's backward then passes the accumulated gradients to the parameters. The loss is
that of the whole batch: the loss of a part is weighted by its number of rows, or by its number of
labels if the model takes `labels` (-100 is ignored).

If the model returns logits, and the program computes the loss, only the logits of a part's forward
are kept. Backward starts from the loss of the whole batch and runs the forward of each part again.
This costs a second forward, and labels need no weights.

The result is exact up to the order of sums if rows are independent: without batch statistics, and
without random numbers, which are drawn for each part separately.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from ullage.act.techniques.means.batch_rows import join_rows, num_rows, split_rows
from ullage.act.techniques.means.known_gradients import with_gradients
from ullage.act.techniques.means.rerun import Rerun, checkpointed
from ullage.act.techniques.technique import Action, Place, Semantics, Setting, Technique

if TYPE_CHECKING:
    from ullage.act.techniques.applying.target import Target

_IGNORED = -100
_CAUSAL_LOSS = "ForCausalLMLoss"


def _apply(target: Target, action: Action) -> None:
    for path, module in target.model.named_modules():
        if getattr(module, "track_running_stats", False):
            MICRO_BATCHES.refuse(f"{path} computes batch statistics")
    num_parts = int(MICRO_BATCHES.value_of(action, "num_parts"))
    target.wrap_forward("", functools.partial(_run, num_parts, []))


def _run(
    num_parts: int, makes_rows: list[bool], forward: Any, *arguments: Any, **keywords: Any
) -> Any:
    import torch

    if not torch.is_grad_enabled():
        return forward(*arguments, **keywords)
    parts = split_rows((arguments, keywords), num_parts)
    if not parts:
        MICRO_BATCHES.refuse("the model takes no tensor")
    if not makes_rows:
        (part_arguments, part_keywords), *_ = parts
        makes_rows.append(_loss_in(forward(*part_arguments, **part_keywords)) is None)
    return _run_rows(forward, parts) if makes_rows[0] else _run_losses(forward, parts)


def _run_rows(forward: Any, parts: list[Any]) -> Any:
    outputs = [checkpointed(Rerun(forward), arguments, keywords) for arguments, keywords in parts]
    joined = join_rows(outputs, [num_rows(part) for part in parts])
    if joined is None:
        MICRO_BATCHES.refuse("the model returns neither a loss nor one value per row")
    return joined


def _run_losses(forward: Any, parts: list[Any]) -> Any:
    """For models that return their loss."""
    import torch

    model = forward.__self__
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    summed: list[Any] = [None] * len(parameters)
    total: Any = 0.0
    outputs: Any = None
    for (arguments, keywords), weight in zip(parts, _weights(forward, parts), strict=True):
        outputs = forward(*arguments, **keywords)
        loss = _loss_in(outputs)
        if loss is None:
            MICRO_BATCHES.refuse("the model returns a loss in some calls, and none in others")
        loss = loss * weight
        total = total + loss.detach()
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        summed = [
            _sum(total_gradient, more)
            for total_gradient, more in zip(summed, gradients, strict=True)
        ]
    used = [index for index, gradient in enumerate(summed) if gradient is not None]
    result = with_gradients(
        total, [summed[index] for index in used], *(parameters[index] for index in used)
    )
    return _with_loss(outputs, result)


def _weights(forward: Any, parts: list[Any]) -> list[Any]:
    loss = getattr(forward.__self__, "loss_function", None)
    counts: list[Any] = []
    for arguments, keywords in parts:
        if keywords.get("num_items_in_batch") is not None:
            # transformers' Trainer: each loss is a sum over labels, by the number in all.
            return [1.0] * len(parts)
        labels = (
            inspect.signature(forward).bind_partial(*arguments, **keywords).arguments.get("labels")
        )
        if labels is None:
            counts.append(num_rows((arguments, keywords)))
        else:
            # Causal losses are of each label but the first.
            causal = getattr(loss, "__name__", None) == _CAUSAL_LOSS
            counts.append(((labels[..., 1:] if causal else labels) != _IGNORED).sum())
    total = sum(counts)
    return [count / total for count in counts]


def _loss_in(outputs: Any) -> Any:
    loss: Any = outputs.get("loss") if isinstance(outputs, dict) else outputs
    is_loss = hasattr(loss, "requires_grad") and not loss.dim() and loss.requires_grad
    return loss if is_loss else None


def _with_loss(outputs: Any, loss: Any) -> Any:
    """The outputs with the loss of the batch; outputs of the last part alone become None."""
    if not isinstance(outputs, dict):
        return loss
    for name in list(outputs):
        outputs[name] = loss if name == "loss" else None
    return outputs


def _sum(total: Any, more: Any) -> Any:
    if total is None or more is None:
        return more if total is None else total
    return total.add_(more)


MICRO_BATCHES = Technique(
    name="micro_batches",
    does="runs a batch in parts, forward and backward",
    precondition="the rows of a batch are independent, except in the loss",
    proof=(
        "batch statistics are refused, and outputs that are neither a loss nor one value per row; "
        "other dependences between rows are not detected"
    ),
    semantics=Semantics.TRAINING,
    place=Place.PROGRAM,
    reference="https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation",
    apply=_apply,
    settings={"num_parts": Setting(default=2, what="number of parts of a batch", least=2)},
    variants=({"num_parts": 4}, {"num_parts": 8}),
)
