"""Runs the parts of techniques that come before training: before the first line of a script, and
when it moves its model to its device.

A model that is split among ranks when it is moved never has to fit one GPU as a whole. If the move
also changes the dtype, the dtype is changed first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any
from weakref import WeakSet

from ullage.techniques.applying.apply import describe_program
from ullage.techniques.applying.changes import Changes
from ullage.techniques.applying.target import Target
from ullage.techniques.catalog import TECHNIQUES
from ullage.techniques.means.sharing.rank_groups import program_has_ranks
from ullage.techniques.plan import Plan
from ullage.techniques.technique import Action

Move = Callable[..., Any]


def start_techniques(plan: Plan, torch: ModuleType) -> None:
    """Calls the `start` of each technique once, before the first line of a script."""
    starts = [TECHNIQUES[action.technique].start for action in plan.actions]
    for start in dict.fromkeys(start for start in starts if start is not None):
        start(torch)


def watch_moves(
    plan: Plan,
    torch: ModuleType,
    optimizers_of: Callable[[Any], list[Any]],
    refuse: Callable[[str, BaseException], None],
) -> None:
    """Applies techniques with an `on_move` when the model of a plan is moved.

    Args:
        plan: without such techniques nothing is watched.
        torch: the module, imported.
        optimizers_of: returns the optimizers with parameters of a module.
        refuse: called with a reason and an error if the plan cannot be applied.
    """
    actions = [
        action for action in plan.actions if TECHNIQUES[action.technique].on_move is not None
    ]
    if not actions:
        return

    def apply(module: Any) -> None:
        try:
            _apply(actions, module, optimizers_of(module))
        except BaseException as error:
            refuse(str(error), error)

    moves = _Moves(plan, torch, apply)
    module = torch.nn.Module
    module.to = moves.watched(module.to, torch._C._nn._parse_to)
    module.cuda = moves.watched(module.cuda, lambda device=None: (_cuda(torch, device), None))


class _Moves:
    def __init__(
        self,
        plan: Plan,
        torch: ModuleType,
        apply: Callable[[Any], None],
    ) -> None:
        self._made_for = replace(plan.made_for, optimizer=None)
        self._torch = torch
        self._apply = apply
        self._moved: WeakSet[Any] = WeakSet()

    def watched(self, move: Move, parse: Callable[..., Any]) -> Move:
        """A method that moves modules, and applies the techniques to the model of the plan."""
        to = self._torch.nn.Module.to

        @functools.wraps(move)
        def move_or_apply(module: Any, *arguments: Any, **keywords: Any) -> Any:
            if type(module).__name__ != self._made_for.model and module not in self._moved:
                return move(module, *arguments, **keywords)
            device, precision, *_ = parse(*arguments, **keywords)
            if module not in self._moved and not self._is_it(module, device):
                return move(module, *arguments, **keywords)
            if precision is not None:
                to(module, precision)
            if module not in self._moved:
                self._apply(module)
                self._moved.add(module)
            return module

        return move_or_apply

    def _is_it(self, module: Any, device: Any) -> bool:
        """True if this moves the model of the plan to the device where it is trained."""
        torch = self._torch
        if device is None or (device.type != "cuda" and torch.cuda.is_available()):
            return False
        if program_has_ranks():
            return False
        program = describe_program(module, None, self._made_for.modules)
        return not self._made_for.differences(program)


def _apply(actions: Sequence[Action], module: Any, optimizers: list[Any]) -> None:
    """Applies actions permanently; if one fails, the others are undone."""
    changes = Changes()
    try:
        target = Target(module, optimizers, changes)
        for action in actions:
            apply = TECHNIQUES[action.technique].on_move
            if apply is not None:
                apply(target, action)
    except BaseException:
        changes.undo()
        raise
    changes.keep()


def _cuda(torch: ModuleType, device: Any) -> Any:
    if device is None or isinstance(device, int):
        return torch.device("cuda")
    return torch.device(device)
