"""Applies the actions of a plan to a model and its optimizers: all of them, or none.

with applied_actions(plan.actions, plan.made_for, model, optimizer):
    loss = model(batch)         # under the plan
# the model and its optimizer are as they were before
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from ullage.act.techniques.applying.changes import Changes
from ullage.act.techniques.applying.target import change_all
from ullage.act.techniques.catalog import TECHNIQUES
from ullage.act.techniques.made_for import MadeFor
from ullage.act.techniques.technique import Action
from ullage.ground.errors import PlanError
from ullage.players.inside.owners.module_trees import class_name, paths

_UNDER_A_PLAN: WeakSet[Any] = WeakSet()
_NEED = re.compile(r"(?P<name>[\w.-]+)(>=(?P<least>[\d.]+))?")


def apply_actions(
    actions: Sequence[Action], made_for: MadeFor, model: Any, optimizer: Any = None
) -> None:
    """Applies the actions of a plan for as long as the model lives; see `Plan.apply`."""
    _apply(actions, made_for, model, optimizer).keep()


@contextmanager
def applied_actions(
    actions: Sequence[Action], made_for: MadeFor, model: Any, optimizer: Any = None
) -> Iterator[tuple[Any, Any]]:
    """Applies the actions of a plan while a context lasts, and undoes all of them at its end, also
    after an error.
    """
    with _apply(actions, made_for, model, optimizer):
        yield model, optimizer


def describe_program(model: Any, optimizer: Any, modules: Iterable[str] | None = None) -> MadeFor:
    """Describes a program, as plans for it do.

    Args:
        model: an `nn.Module`, wrapped or not.
        optimizer: a `torch.optim.Optimizer`, several, or None.
        modules: the paths of the modules to include; missing ones are left out. None: all.
    """
    import torch

    parts = dict(paths(model))
    selected = parts if modules is None else [path for path in modules if path in parts]
    optimizers = [type(inner).__name__ for inner in unwrap_optimizers(optimizer)]
    return MadeFor(
        torch=str(torch.__version__),
        model=class_name(parts[""]),
        num_parameters=sum(map(num_elements, parts[""].parameters())),
        modules={path: class_name(parts[path]) for path in selected},
        optimizer=", ".join(optimizers) or None,
    )


def unwrap_optimizers(optimizer: Any) -> list[Any]:
    """The torch optimizers in an optimizer, a list of several, or None, without the wrappers of
    Accelerate, DeepSpeed or Lightning.
    """
    if optimizer is None:
        return []
    if isinstance(optimizer, list | tuple):
        return [inner for wrapper in optimizer for inner in unwrap_optimizers(wrapper)]
    visited: set[int] = set()
    while id(optimizer) not in visited and hasattr(getattr(optimizer, "optimizer", None), "step"):
        visited.add(id(optimizer))
        optimizer = optimizer.optimizer
    return [optimizer]


def _apply(actions: Sequence[Action], made_for: MadeFor, model: Any, optimizer: Any) -> Changes:
    """Applies all actions of a plan; if one of them fails, it undoes the others."""
    optimizers = unwrap_optimizers(optimizer)
    _check_program(made_for, model, optimizers)
    _check_needs(actions)
    steps = ((TECHNIQUES[action.technique].apply, action) for action in actions)
    changes = change_all(model, optimizers, steps)
    root = dict(paths(model))[""]
    _UNDER_A_PLAN.add(root)
    changes.on_undo(_UNDER_A_PLAN.discard, root)
    return changes


def _check_program(made_for: MadeFor, model: Any, optimizers: list[Any]) -> None:
    """Raises PlanError if a plan is for another program, or a plan is already applied."""
    root = dict(paths(model))[""]
    if root in _UNDER_A_PLAN:
        raise PlanError(
            f"a plan is already applied to {class_name(root)}; put all actions into one plan, or "
            "undo the first"
        )
    if type(model).__name__ == "DataParallel":
        raise PlanError(
            "DataParallel copies the model at every step, and the copies would not have the plan; "
            "use DistributedDataParallel"
        )
    program = describe_program(model, optimizers, made_for.modules)
    differences = made_for.differences(program)
    if differences:
        raise PlanError(
            f"the plan was made for another program: {'; '.join(differences)}; make one for this "
            "program with `ullage fit`"
        )


def _check_needs(actions: Sequence[Action]) -> None:
    """Raises PlanError if a package that a technique needs is not installed."""
    for action in actions:
        for need in TECHNIQUES[action.technique].needs:
            _check_need(action.technique, need)


def _check_need(technique: str, need: str) -> None:
    """Raises PlanError if a requirement, such as "torch>=2.13", is not met."""
    matched = _NEED.fullmatch(need)
    if matched is None:
        raise PlanError(
            f"{technique!r} needs {need!r}, which is not a requirement such as torch>=2.13"
        )
    name, least = matched["name"], matched["least"]
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        raise PlanError(
            f"{technique!r} needs {need}, which is not installed here: pip install {name!r}"
        ) from None
    if least and _numbers(version) < _numbers(least):
        raise PlanError(f"{technique!r} needs {need}; this is {name} {version}")


def _numbers(version: str) -> tuple[int, ...]:
    """The release of a version: (2, 13, 0) of 2.13.0+cu132."""
    release = re.match(r"[\d.]*", version)
    return tuple(int(part) for part in (release[0] if release else "").split(".") if part)


def num_elements(parameter: Any) -> int:
    """Elements of the complete parameter, of which DeepSpeed may have left a part here."""
    try:
        return int(getattr(parameter, "ds_numel", parameter.numel()))
    except ValueError:  # a lazy parameter has no shape yet
        return 0
