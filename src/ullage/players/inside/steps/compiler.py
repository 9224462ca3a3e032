"""torch's compiler: loaded when the program needs it, not when an eager optimizer mentions it.

An eager optimizer imports all of torch._dynamo at its first step, to say two things: that this
function is not to be compiled, and that a graph would break here. In a process that compiles
nothing, that import is the largest part of a short run. So torch._dynamo is a module that has not
been executed yet: it answers these two where torch itself says them, and executes itself, in place,
when anything else of it is asked for, by whichever way of importing.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any

from ullage.players.inside.import_hooks import find_after

_NAME = "torch._dynamo"
_KNOWN = frozenset(
    f"__{name}__" for name in ("spec", "name", "loader", "file", "package")
) | {"__warningregistry__"}  # fmt: skip
"""Attributes that Python and inspect ask of every module without meaning to use it."""
_EAGER_CALLERS = frozenset(
    {"torch._compile", "torch.optim.optimizer", "torch.distributed.fsdp._fully_shard._fsdp_common"}
)
"""Modules of torch that ask torch._dynamo for an answer in programs that compile nothing."""


class _DeferredDynamo(ModuleType):
    """torch._dynamo before its first real use."""

    def __getattribute__(self, name: str) -> Any:
        if name in _KNOWN:
            return super().__getattribute__(name)
        if name == "__class__":
            return ModuleType
        answer = _ANSWERS.get((name, sys._getframe(1).f_globals.get("__name__")))
        if answer is not None:
            return answer
        _execute(self)
        return getattr(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _KNOWN:
            super().__setattr__(name, value)
            return
        _execute(self)
        setattr(self, name, value)

    def __delattr__(self, name: str) -> None:
        _execute(self)
        delattr(self, name)


_not_disabled: list[Callable[..., Any]] = []
_on_load: list[Callable[[ModuleType], None]] = []


def _break_nothing(*_arguments: Any, **_named: Any) -> None:
    """No graph is being traced."""


def _disable(function: Callable[..., Any], *_arguments: Any, **_named: Any) -> Callable[..., Any]:
    """The function itself: nothing is compiled."""
    _not_disabled.append(function)
    return function


def _disable_later(function: Any = None, *arguments: Any, **options: Any) -> Any:
    """A function of the program that is not to be compiled: itself, until something may be."""
    if function is None:
        return lambda function: _disable_later(function, *arguments, **options)
    if not isinstance(function, FunctionType):
        return sys.modules[_NAME].disable(function, *arguments, **options)
    disabled: Any = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal disabled
        dynamo: Any = sys.modules[_NAME]
        if disabled is None and type(dynamo) is _DeferredDynamo:
            return function(*args, **kwargs)
        disabled = disabled or dynamo.disable(function, *arguments, **options)
        return disabled(*args, **kwargs)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    call._torchdynamo_orig_callable = function  # type: ignore[attr-defined]
    return call


_ANSWERS: dict[tuple[str, str | None], Callable[..., Any]] = {
    **{("graph_break", name): _break_nothing for name in _EAGER_CALLERS},
    **{("disable", name): _disable for name in _EAGER_CALLERS},
    ("disable", "torch.compiler"): _disable_later,
}
"""By what is asked for and by the module of torch that asks."""


class _SubmoduleFinder:
    """Finds submodules that executing the package has loaded.

    `import torch._dynamo.config` looks for the submodule after it has asked the package where to
    look. If that question executed the package, the submodule is loaded by then, and would be
    loaded a second time.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a submodule that is loaded, with a loader that gives that module."""
        module = sys.modules.get(name)
        if not name.startswith(f"{_NAME}.") or module is None or target is not None:
            return None
        spec = find_after(self, name, path)
        if spec is not None and spec.loader is not None:
            loader: Any = _LoadedLoader(spec.loader, module)
            spec.loader = loader
        return spec


class _LoadedLoader:
    def __init__(self, loader: Any, module: ModuleType) -> None:
        self._loader = loader
        self._module = module
        self._spec = module.__spec__

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, _spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        with contextlib.suppress(AttributeError):  # a module of settings takes no other attributes
            module.__spec__ = self._spec


@contextlib.contextmanager
def _importing(module: ModuleType) -> Iterator[None]:
    """Other threads that import the module wait until it is whole, as in an import of Python's."""
    bootstrap: Any = getattr(importlib, "_bootstrap", None)
    lock = getattr(bootstrap, "_ModuleLockManager", None)
    spec: Any = module.__spec__
    with lock(_NAME) if lock is not None else contextlib.nullcontext():
        spec._initializing = True
        try:
            yield
        finally:
            spec._initializing = False


def _execute(module: ModuleType) -> None:
    """Makes the module what it would have been, once; other threads wait for it."""
    with _importing(module):
        if type(module) is not _DeferredDynamo:  # another thread was first
            return
        object.__setattr__(module, "__class__", ModuleType)
        _forget_answers()
        spec = module.__spec__
        if spec is not None and spec.loader is not None:
            try:
                spec.loader.exec_module(module)
            except BaseException:  # as a failed import leaves it
                sys.modules.pop(_NAME, None)
                raise
        sys.meta_path.insert(0, _SubmoduleFinder())
        for callback in _on_load:
            callback(module)


def _forget_answers() -> None:
    """Has torch ask again about the functions that it must not compile."""
    for function in _not_disabled:
        # torch._compile remembers the answer under this name.
        if getattr(function, "__dynamo_disable", None) is function:
            delattr(function, "__dynamo_disable")
    _not_disabled.clear()


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
    setattr(torch, _NAME.rpartition(".")[2], module)
