"""Modules of the program's libraries, at the moment they arrive."""

from __future__ import annotations

import contextlib
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Load = Callable[[ModuleType], None]


def on_import(name: str, callback: Load) -> Callable[[], None]:
    """Calls `callback(module)` when a module has been imported; at once where it is there. Returns
    what calls that off.
    """
    if name in sys.modules:
        callback(sys.modules[name])
        return lambda: None

    def load_and_call(module: ModuleType, load: Load) -> None:
        load(module)
        callback(module)

    return around_import(name, load_and_call)


def around_import(name: str, arrive: Callable[[ModuleType, Load], None]) -> Callable[[], None]:
    """Calls `arrive(module, load)` instead of loading a module; load(module) is what loads it.
    Returns what calls that off.
    """
    finder = _Finder(name, arrive)
    sys.meta_path.insert(0, finder)

    def call_off() -> None:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(finder)

    return call_off


def find_after(
    finder: object, name: str, path: Sequence[str] | None, target: ModuleType | None = None
) -> importlib.machinery.ModuleSpec | None:
    """Asks the finders after `finder` for a module."""
    finders = list(sys.meta_path)
    first = finders.index(finder) + 1 if finder in finders else 0
    specs = (other.find_spec(name, path, target) for other in finders[first:])
    return next((spec for spec in specs if spec is not None), None)


class _Finder:
    """Finds one module as Python would, until it has been loaded."""

    def __init__(self, name: str, arrive: Callable[[ModuleType, Load], None]) -> None:
        self._name = name
        self._arrive = arrive

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own spec, with a loader that calls back; None for all else."""
        if name != self._name:
            return None
        # Many ask whether a module is there (importlib.util.find_spec) long before they import it.
        spec = find_after(self, name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)  # type: ignore[assignment]
        return spec

    def load(self, module: ModuleType, load: Load) -> None:
        """The module arrives; there is nothing to find after that."""
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        self._arrive(module, load)


class _Loader:
    """A module's own loader, but for the moment of loading; the module keeps the loader it would
    have had.
    """

    def __init__(self, loader: Any, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._finder.load(module, self._loader.exec_module)
