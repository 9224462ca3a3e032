"""Checkpoints several modules as one: a chain of modules (`torch.nn.Sequential`) is cut into
segments, which save only their inputs and run again in backward. torch's `checkpoint_sequential`
does the same with even segments, and does not checkpoint the last one.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING, Any, NoReturn

from ullage.act.techniques.means.rerun import Rerun, checkpointed
from ullage.act.techniques.means.tiling import even_lengths
from ullage.act.techniques.technique import Action, Place, Semantics, Setting, Technique
from ullage.ground.errors import PlanError

if TYPE_CHECKING:
    from ullage.act.techniques.applying.target import Target


def _apply(target: Target, action: Action) -> None:
    import torch

    for path in action.modules:
        chain = target.module(path)
        if type(chain).forward is not torch.nn.Sequential.forward:
            _refuse(f"{path!r} is a {type(chain).__name__}, not a torch.nn.Sequential")
        if "forward" in vars(chain):
            _refuse(f"{path!r} has a forward that something else has replaced")
        lengths = read_lengths(
            str(CHECKPOINT_SEGMENTS.value_of(action, "lengths")), path, len(chain)
        )
        is_last_run_once = bool(CHECKPOINT_SEGMENTS.value_of(action, "spares_last"))
        target.wrap_forward(path, functools.partial(_run, lengths, is_last_run_once))


def read_lengths(text: str, path: str, count: int) -> tuple[int, ...]:
    """The lengths of the segments of a chain of `count` modules, from "4,4,3".

    Raises:
        PlanError: the text is not a list of lengths, or their sum is not `count`.
    """
    if not text:
        return even_lengths(count, round(math.sqrt(count)))
    words = text.split(",")
    lengths = tuple(int(word) for word in words if word.strip().isdecimal())
    if len(lengths) != len(words) or 0 in lengths or sum(lengths) != count:
        raise PlanError(
            f"checkpoint_segments.lengths is {text!r}; expected lengths whose sum is {count}, the "
            f"number of modules in {path!r}, for example '{count // 2},{count - count // 2}'"
        )
    return lengths


def _run(lengths: tuple[int, ...], is_last_run_once: bool, forward: Any, value: Any) -> Any:  # noqa: FBT001 - bound once
    import torch

    if not torch.is_grad_enabled():
        return forward(value)
    if torch.compiler.is_compiling():
        _refuse("a compiled chain is one graph, which cannot be cut")
    chain = forward.__self__
    parts = iter(chain)
    for length in lengths[:-1] if is_last_run_once else lengths:
        # A segment has its modules in common with the chain, and is called past its own hooks.
        segment = torch.nn.Sequential(*itertools.islice(parts, length))
        segment.training = chain.training
        value = checkpointed(Rerun(segment.forward), (value,), {})
    for part in parts:
        value = part(value)
    return value


def _refuse(what: str) -> NoReturn:
    raise PlanError(f"'checkpoint_segments' does not go with this program: {what}")


CHECKPOINT_SEGMENTS = Technique(
    name="checkpoint_segments",
    does="cuts a chain of modules into checkpointed segments, which save only their inputs",
    precondition="the chain is a torch.nn.Sequential with its own forward; also as for checkpoint",
    proof="class and forward of the chain are checked; then as for checkpoint",
    semantics=Semantics.SAME,
    place=Place.MODULES,
    reference="https://docs.pytorch.org/docs/stable/checkpoint.html#torch.utils.checkpoint.checkpoint_sequential",
    apply=_apply,
    settings={
        "lengths": Setting(
            default="",
            what="modules in each segment, for example 4,4,3; empty: the square root of all",
        ),
        "spares_last": Setting(default=False, what="whether the last segment is not checkpointed"),
    },
    is_for_chains=True,
)
