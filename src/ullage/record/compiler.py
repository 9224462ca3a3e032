"""torch's compiler: loaded when the program needs it, not when an eager optimizer mentions it.

An eager optimizer imports all of torch._dynamo at its first step, to say two things: that this
function is not to be compiled, and that a graph would break here. In a process that compiles
nothing, that import is the largest part of a short run. So torch._dynamo is a module that has not
been executed yet: it understands these two, and executes itself, in place, when anything else of
it is asked for.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_NAME = "torch._dynamo"
_KNOWN = frozenset(
    f"__{name}__" for name in ("spec", "class", "name", "loader", "dict", "doc", "file", "package")
) | {"__warningregistry__"}
"""What Python and its inspect module ask of every module without meaning to use it."""


class _DeferredDynamo(ModuleType):
    """torch._dynamo before its first real use."""

    def __getattribute__(self, name: str) -> Any:
        if name in _KNOWN:
            return super().__getattribute__(name)
        if name == "graph_break":
            return _break_nothing
        if name == "disable":
            return _disable
        _execute(self)
        return getattr(self, name)


_not_disabled: list[Callable[..., Any]] = []


def _break_nothing(*_arguments: Any, **_named: Any) -> None:
    """No graph is being traced."""


def _disable(function: Callable[..., Any], *_arguments: Any, **_named: Any) -> Callable[..., Any]:
    """The function itself: nothing is compiled."""
    _not_disabled.append(function)
    return function


def _execute(module: ModuleType) -> None:
    """Makes the module what it would have been; functions met before are asked about again."""
    object.__setattr__(module, "__class__", ModuleType)
    for function in _not_disabled:
        # torch._compile remembers the answer under this name.
        if getattr(function, "__dynamo_disable", None) is function:
            delattr(function, "__dynamo_disable")
    spec = module.__spec__
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module)


def defer_import(torch: ModuleType) -> None:
    """Puts the execution of torch._dynamo off; does nothing where it has been imported."""
    spec = importlib.util.find_spec(_NAME) if _NAME not in sys.modules else None
    if spec is None:
        return
    module = importlib.util.module_from_spec(spec)
    module.__class__ = _DeferredDynamo
    sys.modules[_NAME] = module
    torch._dynamo = module  # type: ignore[attr-defined]
