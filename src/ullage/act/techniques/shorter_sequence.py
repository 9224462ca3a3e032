"""Cuts sequences to their first tokens, for models that take the whole batch in one call.

Each integer or boolean tensor among the arguments of the model is cut in every dimension after the
first that is as long as `input_ids` (or as the first such tensor, if no argument has that name). If
the program computes the loss itself, with targets that are not cut, it fails.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from ullage.act.techniques.means.nested import leaves
from ullage.act.techniques.technique import Action, Place, Semantics, Setting, Technique

if TYPE_CHECKING:
    from ullage.act.techniques.applying.target import Target

_NAME = "input_ids"
_ALL = 100


def _apply(target: Target, action: Action) -> None:
    percent = int(SHORTER_SEQUENCE.value_of(action, "percent"))
    if percent >= _ALL:
        SHORTER_SEQUENCE.refuse(f"percent is {percent}; expected fewer than {_ALL}")
    target.wrap_forward("", functools.partial(_run, percent))


def _run(percent: int, forward: Any, *arguments: Any, **keywords: Any) -> Any:
    from torch import is_grad_enabled

    if not is_grad_enabled():
        return forward(*arguments, **keywords)
    inputs = inspect.signature(forward).bind(*arguments, **keywords).arguments
    tokens = inputs.get(_NAME)
    tokens = next(filter(_is_tokens, leaves(inputs)), None) if tokens is None else tokens
    if tokens is None or tokens.dim() < 2:
        SHORTER_SEQUENCE.refuse("the model takes no tokens (batch, length)")
    length = tokens.shape[1]
    new_length = max(1, length * percent // _ALL)
    cut = functools.partial(_cut, length, new_length)
    return forward(*map(cut, arguments), **{name: cut(value) for name, value in keywords.items()})


def _is_tokens(value: Any) -> bool:
    return hasattr(value, "dim") and value.dim() > 1 and not value.is_floating_point()


def _cut(length: int, new_length: int, value: Any) -> Any:
    if _is_tokens(value):
        for dim in range(1, value.dim()):
            if value.shape[dim] == length:
                value = value.narrow(dim, 0, new_length)
    return value


SHORTER_SEQUENCE = Technique(
    name="shorter_sequence",
    does="cuts the input sequences of a model, with their labels and masks",
    precondition="the model takes token ids",
    proof="its arguments are searched for token ids",
    semantics=Semantics.TRAINING,
    place=Place.PROGRAM,
    reference="https://huggingface.co/docs/transformers/pad_truncation",
    apply=_apply,
    settings={"percent": Setting(default=50, what="percent of the tokens that remain", least=1)},
    variants=({"percent": 75},),
)
