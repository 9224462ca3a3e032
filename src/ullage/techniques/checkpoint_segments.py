"""Checkpointing of several modules as one: a chain of modules (`torch.nn.Sequential`) is cut into
segments, which keep their inputs and run again in backward. torch's `checkpoint_sequential` does
the same with even segments, of which it spares the last.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING, Any, NoReturn

from ullage.errors import PlanError
from ullage.techniques.means.rerun import Rerun, checkpointed
from ullage.techniques.means.tiling import even_lengths
from ullage.techniques.technique import Action, Place, Semantics, Setting, Technique

if TYPE_CHECKING:
    from ullage.techniques.applying.target import Target


def _apply(target: Target, action: Action) -> None:
    import torch

    for path in action.modules:
        chain = target.module(path)
        if type(chain).forward is not torch.nn.Sequential.forward:
            _refuse(f"{path!r} is a {type(chain).__name__} and no torch.nn.Sequential, whose parts")
        if "forward" in vars(chain):
            _refuse(f"{path!r} has a forward of its own, set by another, and no parts")
        lengths = read_lengths(
            str(CHECKPOINT_SEGMENTS.value_of(action, "lengths")), path, len(chain)
        )
        is_last_run_once = bool(CHECKPOINT_SEGMENTS.value_of(action, "spares_last"))
        target.wrap_forward(path, functools.partial(_run, lengths, is_last_run_once))


def read_lengths(text: str, path: str, count: int) -> tuple[int, ...]:
    """The lengths of the segments of a chain of `count` modules, from "4,4,3".

    Raises:
        PlanError: they are no lengths, or not of all of the chain.
    """
    if not text:
        return even_lengths(count, round(math.sqrt(count)))
    words = text.split(",")
    lengths = tuple(int(word) for word in words if word.strip().isdecimal())
    if len(lengths) != len(words) or 0 in lengths or sum(lengths) != count:
        raise PlanError(
            f"checkpoint_segments.lengths is {text!r}; expected lengths whose sum is {count}, the "
            f"number of modules in {path!r}, such as '{count // 2},{count - count // 2}'"
        )
    return lengths


def _run(lengths: tuple[int, ...], is_last_run_once: bool, forward: Any, value: Any) -> Any:  # noqa: FBT001 - bound once
    import torch

    if not torch.is_grad_enabled():
        return forward(value)
    if torch.compiler.is_compiling():
        _refuse("a compiled chain is one graph, whose parts")
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
    raise PlanError(f"'checkpoint_segments' does not go with this program: {what} it could cut")


CHECKPOINT_SEGMENTS = Technique(
    name="checkpoint_segments",
    does="cuts a chain of modules into segments that keep their inputs and run again in backward",
    precondition="the modules are torch.nn.Sequential with its own forward; else as for checkpoint",
    proof="its class and forward are looked at; then as checkpoint",
    semantics=Semantics.SAME,
    place=Place.MODULES,
    reference="https://docs.pytorch.org/docs/stable/checkpoint.html#torch.utils.checkpoint.checkpoint_sequential",
    apply=_apply,
    settings={
        "lengths": Setting(
            default="", what="modules in each segment, such as 4,4,3; empty: about their root each"
        ),
        "spares_last": Setting(
            default=False, what="the last segment keeps everything, and does not run again"
        ),
    },
    is_for_chains=True,
)
