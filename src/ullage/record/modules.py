"""In which module the program is: a scope for each module, entered and left with its forward.

The phantom notes the scope of each allocator event, in backward too (csrc/scope.c). Here scopes get
their names: the path of a module in the outermost module that holds it, as `named_modules()` has
it, without the parts that wrappers add.
"""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

from ullage.record import library

# What wraps a module in the place of the module: it is no part of the path.
_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
_WRAPPERS = ("DistributedDataParallel", "DataParallel", "DeepSpeedEngine")
_OF_WRAPPERS = "module"
# The pointer that an autograd node of Python holds comes after the two words of every object.
_NODE_OFFSET = 16
_MAX_SEARCHES = 32


Place = tuple[int, str]
"""Where a module or a parameter stands: the number of its root among roots, and its path there."""


class Modules:
    """The scopes of all modules met. One for the process."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._numbers: dict[int, int] = {}
        self._references: dict[int, weakref.ref[Any]] = {}
        self._scopes: list[Place] = []
        self._of_place: dict[Place, int] = {}
        self._roots: list[str] = []
        self._has_parameters: list[bool] = []
        self._root_of: dict[int, int] = {}
        self._functional_roots: dict[str, int] = {}
        self._called: set[int] = set()
        self._num_searches = 0

    def begin(self) -> bool:
        """Shows the phantom an autograd node, so that it can tell nodes apart; False: it cannot,
        and what backward allocates has no module.
        """
        torch = self._torch
        with torch.inference_mode(mode=False), torch.enable_grad():
            leaf = torch.ones(1, requires_grad=True, device="cpu", dtype=torch.float32)
            node = leaf.neg().grad_fn
        number = getattr(node, "_sequence_nr", None)
        if number is None:
            return False
        pointer = ctypes.c_void_p.from_address(id(node) + _NODE_OFFSET).value
        return bool(pointer and library.know_nodes(pointer, number()))

    def enter(self, module: Any) -> None:
        """A module's forward begins."""
        number = self._numbers.get(id(module))
        library.enter_scope(self._meet(module) if number is None else number)

    def note_call(self, module: Any) -> None:
        """A module that has a scope was called while no other was."""
        self._called.add(self._scopes[self._numbers[id(module)]][0])

    def walk(self, top: Any) -> Iterator[tuple[Place, Any]]:
        """A module and all in it, each once. Where it was met within another one, all are named
        after that; else from now on after this one.
        """
        number = self._numbers.get(id(top))
        root, start = (self._root_number(top), "") if number is None else self._scopes[number]
        for path, module in _paths(top, start):
            place = (root, path)
            self._place(module, place)
            yield place, module

    def names(self) -> list[str]:
        """The name of each scope, by number."""
        return list(map(self.naming(), self._scopes))

    def naming(self) -> Callable[[Place], str]:
        """What names a place: its path; where several roots with parameters were called, or this
        one was not, or has none, behind the name of the root.
        """
        owners = {root for root in self._called if self._has_parameters[root]}
        sole = next(iter(owners)) if len(owners) == 1 else None

        def name(place: Place) -> str:
            root, path = place
            return path if root == sole else join(self._roots[root], path)

        return name

    def _meet(self, module: Any) -> int:
        """The scope of a module that was not met before, nor any that holds it."""
        top = module
        # A loss may be made anew in each step; to look for what holds a module takes milliseconds.
        if _has_parameters(module) and self._num_searches < _MAX_SEARCHES:
            self._num_searches += 1
            top = _outermost(module, live_owners(self._torch)[0])
        for _ in self.walk(top):
            pass
        return self._numbers[id(module)]

    def _place(self, module: Any, place: Place) -> None:
        """Gives a module its scope, or its scope another place."""
        key = id(module)
        number = self._numbers.get(key)
        if number is None:
            number = self._of_place.get(place, len(self._scopes))
            self._numbers[key] = number
            self._references[key] = weakref.ref(module, lambda _: self._forget(key))
        if number == len(self._scopes):
            self._scopes.append(place)
        self._scopes[number] = place
        self._of_place[place] = number

    def _forget(self, key: int) -> None:
        """A module is gone; another may have its id."""
        self._numbers.pop(key, None)
        self._references.pop(key, None)
        self._root_of.pop(key, None)

    def _root_number(self, root: Any) -> int:
        known = self._root_of.get(id(root))
        if known is not None:
            return known
        name = type(_unwrapped(root)).__name__
        if is_replica(root) and name in self._roots:
            return self._roots.index(name)  # the paths are those of the root
        has_parameters = _has_parameters(root)
        if not has_parameters and name in self._functional_roots:
            number = self._functional_roots[name]
        else:
            same = sum(other.partition("#")[0] == name for other in self._roots)
            number = len(self._roots)
            self._roots.append(f"{name}#{same + 1}" if same else name)
            self._has_parameters.append(has_parameters)
            if not has_parameters:
                self._functional_roots[name] = number
        self._root_of[id(root)] = number
        return number


def is_replica(module: Any) -> bool:
    """Whether a module is one of those that DataParallel makes for each device at each call."""
    return getattr(module, "_is_replica", False)


def live_owners(torch: ModuleType) -> tuple[list[Any], list[Any]]:
    """All modules and all optimizers that there are; among half a million objects, each type is
    judged once.
    """
    modules, optimizers = list[Any](), list[Any]()
    into: dict[type, list[Any] | None] = {}
    for found in gc.get_objects():
        kind = type(found)
        if kind not in into:
            is_module = issubclass(kind, torch.nn.Module)
            is_optimizer = issubclass(kind, torch.optim.Optimizer)
            into[kind] = modules if is_module else optimizers if is_optimizer else None
        owners = into[kind]
        if owners is not None:
            owners.append(found)
    return modules, optimizers


def find_roots(modules: Sequence[Any]) -> list[Any]:
    """The modules that no other holds."""
    held = {id(child) for module in modules for _, child in _children(module)}
    return [
        module for module in modules if id(module) not in held and "_modules" in module.__dict__
    ]


def _outermost(module: Any, modules: Sequence[Any]) -> Any:
    """The module that holds all that hold a module; itself where none does."""
    parents = {id(child): parent for parent in modules for _, child in _children(parent)}
    seen: set[int] = set()
    while id(module) in parents and id(module) not in seen:
        seen.add(id(module))
        module = parents[id(module)]
    return module


def _has_parameters(module: Any) -> bool:
    return next(iter(module.parameters()), None) is not None


def _paths(top: Any, start: str) -> Iterator[tuple[str, Any]]:
    """The modules of a tree in the order of `named_modules()`, with paths that wrappers are no part
    of.
    """
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [(start, top)]
    while waiting:
        path, module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        waiting += reversed(
            [
                (_join(path, name, module), child)
                for name, child in _children(module)
                if id(child) not in seen
            ]
        )


def _children(module: Any) -> Iterable[tuple[str, Any]]:
    held = getattr(module, "_modules", None) or {}
    return [(name, child) for name, child in held.items() if child is not None]


def _join(path: str, name: str, module: Any) -> str:
    if name in _WRAPPED or (name == _OF_WRAPPERS and type(module).__name__ in _WRAPPERS):
        return path
    return join(path, name)


def join(path: str, name: str) -> str:
    """A path, one name longer."""
    return f"{path}.{name}" if path and name else path or name


def _unwrapped(module: Any) -> Any:
    """What a wrapper wraps, at the end of wrappers."""
    for name, child in _children(module):
        if not _join("", name, module):
            return _unwrapped(child)
    return module
