"""torch's compiler: loaded when the program needs it, not when an eager optimizer mentions it.

An eager optimizer imports all of torch._dynamo at its first step, to say two things: that this
function is not to be compiled, and that a graph would break here. In a process that compiles
nothing, that import is the largest part of a short run. So torch._dynamo is a module that has not
been executed yet: it understands these two, and executes itself, in place, when anything else of
it is asked for.
"""

from __future__ import annotations

import importlib.machinery
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
_on_load: list[Callable[[ModuleType], None]] = []


def _break_nothing(*_arguments: Any, **_named: Any) -> None:
    """No graph is being traced."""


def _disable(function: Callable[..., Any], *_arguments: Any, **_named: Any) -> Callable[..., Any]:
    """The function itself: nothing is compiled."""
    _not_disabled.append(function)
    return function


class _LoadedFinder:
    """Finds what is loaded already, once: an import of a submodule comes upon a package that has
    not been executed, has it executed, and would then load the submodule a second time.
    """

    def find_spec(
        self, name: str, _path: object, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a submodule of torch._dynamo that is loaded; None for all else."""
        if not name.startswith(f"{_NAME}."):
            return None
        sys.meta_path.remove(self)
        found = sys.modules.get(name) if target is None else None
        if found is None:
            return None
        loader: Any = _LoadedLoader(found)
        return importlib.util.spec_from_loader(name, loader)


class _LoadedLoader:
    """The loader of a module that is there."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, _spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


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
    sys.meta_path.insert(0, _LoadedFinder())
    for callback in _on_load:
        callback(module)


def defer_import(torch: ModuleType, on_load: Callable[[ModuleType], None]) -> None:
    """Puts the execution of torch._dynamo off, except where it has been imported already.

    on_load: is called with torch._dynamo when it has been executed.
    """
    if _NAME in sys.modules:
        on_load(sys.modules[_NAME])
        return
    spec = importlib.util.find_spec(_NAME)
    if spec is None:
        return
    _on_load.append(on_load)
    module = importlib.util.module_from_spec(spec)
    module.__class__ = _DeferredDynamo
    sys.modules[_NAME] = module
    torch._dynamo = module  # type: ignore[attr-defined]
