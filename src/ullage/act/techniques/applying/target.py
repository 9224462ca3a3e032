"""The target of techniques: a model and its optimizers, and the record of changes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any

from ullage.act.techniques.applying.changes import Changes
from ullage.ground.errors import PlanError
from ullage.players.inside.owners.module_trees import paths

_SHOWN = 3


class Target:
    """A model and its optimizers while techniques are applied.

    Attributes:
        model: the outermost module.
        optimizers: the optimizers of its parameters. They are changed in place, because the program
            refers to them.
        changes: the record of all changes, to undo them.
    """

    def __init__(self, model: Any, optimizers: list[Any], changes: Changes) -> None:
        self.model = model
        self.optimizers = optimizers
        self.changes = changes
        self._modules = dict(paths(model))

    def module(self, path: str) -> Any:
        """The module at a path, which leaves out wrappers.

        Raises:
            PlanError: there is no such module.
        """
        module = self._modules.get(path)
        if module is None:
            near = [name for name in self._modules if name.endswith(path.rpartition(".")[2])]
            near = near or [name for name in self._modules if name]
            examples = ", ".join(near[:_SHOWN])
            raise PlanError(
                f"{type(self.model).__name__} has no module {path!r}; it has, for example: "
                f"{examples}"
            )
        return module

    def wrap_forward(self, path: str, around: Callable[..., Any]) -> None:
        """Calls `around(forward, *arguments, **keywords)` instead of the forward of a module.

        `forward` is a method of the called module, `forward.__self__`. So a copy of the model
        (`copy.deepcopy`, for example to average weights) runs on its own parameters. The module
        can still be pickled, and its signature does not change.
        """
        from torch.compiler import is_compiling

        module = self.module(path)
        inner = module.forward
        if getattr(inner, "__self__", None) is module:
            function = inner.__func__
        else:  # something else has set a function there
            function = _with_self(inner)

        @functools.wraps(function)
        def forward(self: Any, *arguments: Any, **keywords: Any) -> Any:
            # The compiler does not support new bound methods; a trace does not need the module.
            bind = functools.partial if is_compiling() else MethodType
            return around(bind(function, self), *arguments, **keywords)

        self.changes.set(module, "forward", MethodType(forward, module))


def _with_self(call: Callable[..., Any]) -> Callable[..., Any]:
    """A function as a method that ignores its object."""

    @functools.wraps(call)
    def method(_: Any, *arguments: Any, **keywords: Any) -> Any:
        return call(*arguments, **keywords)

    return method


def change_all(
    model: Any, optimizers: list[Any], steps: Iterable[tuple[Callable[..., None] | None, Any]]
) -> Changes:
    """Applies techniques to a model, each with its action; if one fails, the others are undone."""
    changes = Changes()
    try:
        target = Target(model, optimizers, changes)
        for apply, action in steps:
            if apply is not None:
                apply(target, action)
    except BaseException:
        changes.undo()
        raise
    return changes
