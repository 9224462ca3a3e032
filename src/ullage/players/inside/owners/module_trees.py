"""The tree of a model's modules: what holds what, and paths that wrappers are not part of."""

from __future__ import annotations

import gc
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import compress
from types import ModuleType
from typing import Any

# What wraps a module in the place of the module: it is no part of the path.
_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
_WRAPPERS = ("DistributedDataParallel", "DataParallel", "DeepSpeedEngine")
_OF_WRAPPERS = "module"
# FSDP2 gives each module that it shards a class of its own, made of this one and the module's.
_SHARDED = "FSDPModule"


def live_owners(torch: ModuleType) -> tuple[list[Any], list[Any]]:
    """All modules and all optimizers that there are."""
    modules, optimizers = map(_subclasses, (torch.nn.Module, torch.optim.Optimizer))
    owners = of_kinds(gc.get_objects(), modules | optimizers)
    return of_kinds(owners, modules), of_kinds(owners, optimizers)


def _subclasses(kind: type) -> set[type]:
    """A class and all that are made of it."""
    kinds, waiting = {kind}, [kind]
    while waiting:
        new: set[type] = set(type.__subclasses__(waiting.pop())) - kinds
        kinds |= new
        waiting += new
    return kinds


def of_kinds(objects: Iterable[Any], kinds: Container[type]) -> list[Any]:
    """The objects of some classes, among half a million, without a line of Python for each."""
    return list(compress(objects, map(kinds.__contains__, map(type, objects))))


def find_roots(modules: Sequence[Any]) -> list[Any]:
    """The modules that no other holds."""
    children = {id(child) for module in modules for _, child in _children(module)}
    return [
        module for module in modules if id(module) not in children and "_modules" in module.__dict__
    ]


def outermost(module: Any, modules: Sequence[Any]) -> Any:
    """The module that holds all that hold a module; itself where none does."""
    parents = {id(child): parent for parent in modules for _, child in _children(parent)}
    visited: set[int] = set()
    while id(module) in parents and id(module) not in visited:
        visited.add(id(module))
        module = parents[id(module)]
    return module


def paths(top: Any, start: str = "") -> Iterator[tuple[str, Any]]:
    """The modules of a tree in the order of `named_modules()`, with paths that wrappers are not
    part of.
    """
    visited: set[int] = set()
    waiting: list[tuple[str, Any]] = [(start, top)]
    while waiting:
        path, module = waiting.pop()
        if id(module) in visited:
            continue
        visited.add(id(module))
        yield path, module
        waiting += reversed(
            [
                (_join(path, name, module), child)
                for name, child in _children(module)
                if id(child) not in visited
            ]
        )


def _children(module: Any) -> Iterable[tuple[str, Any]]:
    children = getattr(module, "_modules", None) or {}
    return [(name, child) for name, child in children.items() if child is not None]


def _join(path: str, name: str, module: Any) -> str:
    if name in _WRAPPED or (name == _OF_WRAPPERS and type(module).__name__ in _WRAPPERS):
        return path
    return join(path, name)


def join(path: str, name: str) -> str:
    """A path, one name longer."""
    return f"{path}.{name}" if path and name else path or name


def unwrapped(module: Any) -> Any:
    """The object at the end of a chain of wrappers."""
    for name, child in _children(module):
        if not _join("", name, module):
            return unwrapped(child)
    return module


def class_name(module: Any) -> str:
    """The name of a module's own class."""
    kind = type(module)
    bases = [base.__name__ for base in kind.__bases__]
    return bases[-1] if _SHARDED in bases[:-1] else kind.__name__
