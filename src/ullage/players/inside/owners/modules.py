"""In which module the program is: a scope for each module, entered and left with its forward.

The phantom notes the scope of each allocator event, in backward too (csrc/machine/scope.c). Here
scopes get their names: the path of a module in the outermost module that holds it, as in
`named_modules()`, without the parts that wrappers add.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from ullage.players.inside import library
from ullage.players.inside.owners.module_trees import join, live_owners, outermost, paths, unwrapped

# The pointer that an autograd node of Python holds comes after the two words of every object.
_NODE_OFFSET = 16
_MAX_SEARCHES = 32


Place = tuple[int, str]
"""Where a module or a parameter stands: the number of its root among roots, and its path there."""
_OTHERS: Place = (-1, "")


class Modules:
    """The scopes of all modules met. One for the process.

    max_scopes: where a program makes new models for as long as it runs, those beyond this share the
        scope "others"; None: there is no limit.
    """

    def __init__(self, torch: ModuleType, max_scopes: int | None = None) -> None:
        self._torch = torch
        self._max_scopes = max_scopes
        self.has_others = False
        self._numbers: dict[int, int] = {}
        self._references: dict[int, weakref.ref[Any]] = {}
        self._scopes: list[Place] = []
        self._of_place: dict[Place, int] = {}
        self._roots: list[str] = []
        self._num_of_name: Counter[str] = Counter()
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

    def enter(self, module: Any) -> int:
        """A module's forward begins; the number of its scope."""
        known = self._numbers.get(id(module))
        number = self._meet(module) if known is None else known
        library.enter_scope(number)
        return number

    def note_call(self, module: Any) -> None:
        """A module that has a scope was called while no other was."""
        self._called.add(self._scopes[self._numbers[id(module)]][0])

    def walk(self, top: Any) -> Iterator[tuple[Place, Any]]:
        """A module and all in it, each once. Where it was met within another one, all are named
        after that; else from now on after this one.
        """
        number = self._numbers.get(id(top))
        root, start = (self._root_number(top), "") if number is None else self._scopes[number]
        for path, module in paths(top, start):
            place = (root, path)
            self._place(module, place)
            yield place, module

    def names(self) -> list[str]:
        """The name of each scope, by number."""
        return list(map(self.naming(), self._scopes))

    def naming(self) -> Callable[[Place], str]:
        """The name of a place: its path; where several roots with parameters were called, or this
        one was not, or has none, behind the name of the root.
        """
        owners = {root for root in self._called if root >= 0 and self._has_parameters[root]}
        sole = next(iter(owners)) if len(owners) == 1 else None

        def name(place: Place) -> str:
            root, path = place
            if root == _OTHERS[0]:
                return join("others", path)
            return path if root == sole else join(self._roots[root], path)

        return name

    def _meet(self, module: Any) -> int:
        """The scope of a module that was not met before, nor any that holds it."""
        top = module
        # A loss may be made again in each step; to look for what holds a module takes milliseconds.
        if _has_parameters(module) and self._num_searches < _MAX_SEARCHES:
            self._num_searches += 1
            top = outermost(module, live_owners(self._torch)[0])
        for _ in self.walk(top):
            pass
        return self._numbers[id(module)]

    def _place(self, module: Any, place: Place) -> None:
        key = id(module)
        number = self._numbers.get(key)
        if number is None:
            number = self._of_place.get(place, len(self._scopes))
            if number == len(self._scopes) and self._is_full:
                place, number = _OTHERS, self._scope_of_others()
            self._numbers[key] = number
            self._references[key] = weakref.ref(module, lambda _: self._forget(key))
        elif self.has_others and number == self._scope_of_others():
            return
        if number == len(self._scopes):
            self._scopes.append(place)
        self._scopes[number] = place
        self._of_place[place] = number

    @property
    def _is_full(self) -> bool:
        return self._max_scopes is not None and len(self._scopes) >= self._max_scopes - 1

    def _scope_of_others(self) -> int:
        if not self.has_others:
            self.has_others = True
            self._scopes.append(_OTHERS)
            self._of_place[_OTHERS] = len(self._scopes) - 1
        return self._of_place[_OTHERS]

    def _forget(self, key: int) -> None:
        """A module is gone; another may have its id."""
        self._numbers.pop(key, None)
        self._references.pop(key, None)
        self._root_of.pop(key, None)

    def _root_number(self, root: Any) -> int:
        known = self._root_of.get(id(root))
        if known is not None:
            return known
        name = type(unwrapped(root)).__name__
        if is_replica(root) and name in self._roots:
            return self._roots.index(name)  # the paths are those of the root
        has_parameters = _has_parameters(root)
        if not has_parameters and name in self._functional_roots:
            number = self._functional_roots[name]
        elif self._is_full:
            number = _OTHERS[0]
        else:
            self._num_of_name[name] += 1
            same = self._num_of_name[name]
            number = len(self._roots)
            self._roots.append(f"{name}#{same}" if same > 1 else name)
            self._has_parameters.append(has_parameters)
            if not has_parameters:
                self._functional_roots[name] = number
        self._root_of[id(root)] = number
        return number


def is_replica(module: Any) -> bool:
    """True if a module is one of those that DataParallel makes for each device at each call."""
    return getattr(module, "_is_replica", False)


def _has_parameters(module: Any) -> bool:
    return next(iter(module.parameters()), None) is not None
