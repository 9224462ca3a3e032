"""Modules that treat each position by itself, run on some positions at a time.

Each tile is checkpointed, so that of what lies inside the module only one tile's share exists at a
time, in forward and in backward. That the modules treat positions apart is the word of who names
them: it is tried on two positions at the first call, and shapes are compared at each.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, NoReturn

from ullage.errors import PlanError
from ullage.techniques.rerun import Rerun
from ullage.techniques.technique import Action, Place, Semantics, Setting, Technique

if TYPE_CHECKING:
    from ullage.techniques.target import Target

# (batch, ..., positions, features)
_POSITIONS = -2
# In 16 bits another kernel may be off by 2^-8 of a value.
_TOLERANCE = 2e-2


def _apply(target: Target, action: Action) -> None:
    num_tiles = int(TILED_MLP.value_of(action, "num_tiles"))
    for path in action.modules:
        for part in target.module(path).modules():
            if getattr(part, "p", 0) and "Dropout" in type(part).__name__:
                _refuse(path, "drops elements, and would draw others in tiles")
            if getattr(part, "track_running_stats", False):
                _refuse(path, "has statistics of its batches")
        target.wrap_forward(path, functools.partial(_run, path, num_tiles, []))


def _run(
    path: str, num_tiles: int, tried: list[bool], forward: Any, *arguments: Any, **named: Any
) -> Any:
    import torch
    from torch.utils.checkpoint import checkpoint

    if len(arguments) != 1 or named:
        _refuse(path, "is given more than its inputs")
    (inputs,) = arguments
    if not torch.is_grad_enabled() or inputs.dim() < -_POSITIONS:
        return forward(inputs)
    if not tried:
        _try_two(path, forward, inputs)
        tried.append(True)
    length = -(-inputs.shape[_POSITIONS] // num_tiles)
    outputs = []
    for tile in inputs.split(length, dim=_POSITIONS):
        run = forward if torch.compiler.is_compiling() else Rerun(forward)
        output = checkpoint(run, tile, use_reentrant=False)
        if output.shape[:-1] != tile.shape[:-1]:
            _refuse(path, f"makes {tuple(output.shape)} of {tuple(tile.shape)}")
        outputs.append(output)
    return torch.cat(outputs, dim=_POSITIONS)


def _try_two(path: str, forward: Any, inputs: Any) -> None:
    """Compares what comes of a position by itself and beside another."""
    import torch

    # On the phantom there are no values to compare.
    if inputs.shape[_POSITIONS] < 2 or "ULLAGE_PHANTOM" in os.environ:
        return
    with torch.no_grad():
        alone = forward(inputs.narrow(_POSITIONS, 1, 1))
        beside = forward(inputs.narrow(_POSITIONS, 0, 2)).narrow(_POSITIONS, 1, 1)
    if (alone - beside).norm() > _TOLERANCE * beside.norm():
        _refuse(path, "makes of a position something else where there is another beside it")


def _refuse(path: str, why: str) -> NoReturn:
    raise PlanError(f"'tiled_mlp' does not go with {path}, which {why}; take it out of the plan")


TILED_MLP = Technique(
    name="tiled_mlp",
    does="runs modules that treat each position by itself on some positions at a time",
    semantics=Semantics.SAME,
    place=Place.MODULES,
    reference="https://arxiv.org/abs/2506.13996",
    apply=_apply,
    settings={"num_tiles": Setting(default=8, what="tiles along the sequence", least=2)},
    excludes=("checkpoint", "offload_activations", "selective_checkpoint"),
    reorders=True,
)
