"""The search for the names of tensors: from a root through containers and objects to a tensor.

    for chain, tensor in Search(torch).tensors(roots):      # "outputs[3] in train()", a tensor

An exception holds the variables of all frames that it went through, so its chain goes on there:

    hidden_states in forward() (traceback of failure in run.py)
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from types import CodeType, FrameType, FunctionType, ModuleType, TracebackType
from typing import Any

from ullage.ground.protocol.holder_chains import traceback_of
from ullage.players.inside.owners import notebook
from ullage.players.inside.owners.frames import (
    frames_of,
    namespace_of,
    place_of,
    running_frames,
    variables_of,
)

Step = tuple[str, str, Any]  # path, place, value
# Of one look: so that it takes some hundredths of a second at most.
_MAX_DEPTH, _MAX_PARTS, _MAX_OBJECTS = 7, 1_000, 20_000
_SEQUENCES: tuple[Any, ...] = (list, tuple, deque)
_SETS: tuple[Any, ...] = (set, frozenset)
_PLAIN = (str, bytes, int, float, complex, type, ModuleType, CodeType, type(None))
_ERRORS = (BaseException, TracebackType, FrameType)
_TRACEBACK = ".__traceback__"
_OF_EXCEPTION = ("__traceback__", "__context__", "__cause__", "args")


class Search:
    """Walks breadth-first, so that the shortest chain to a value comes first. One for a torch."""

    def __init__(self, torch: ModuleType) -> None:
        self._tensor: Any = torch.Tensor
        self._parameter: Any = torch.nn.Parameter
        self._module: Any = torch.nn.Module
        # What every module has: hooks, flags, and parameters, which are claimed by name.
        self._usual = frozenset(torch.nn.Module().__dict__) - {"_modules"}

    def tensors(
        self, roots: Iterable[Step], without: Iterable[object] = ()
    ) -> Iterator[tuple[str, Any]]:
        """The tensors on a GPU that are not parameters, each once, with its chain.

        without: objects that are not looked into.
        """
        visited = {id(value) for value in (*without, *notebook.own_objects())}
        visited |= {id(frame) for frame in running_frames()}  # what they hold are variables
        waiting = deque((*step, 0) for step in roots if not isinstance(step[2], _PLAIN))
        errors: deque[tuple[str, str, Any, int]] = deque()
        for _ in range(_MAX_OBJECTS):
            if not (waiting or errors):
                return
            is_late = not waiting
            path, place, value, depth = (waiting or errors).popleft()
            if id(value) in visited:
                continue
            if isinstance(value, _ERRORS) and not is_late:
                errors.append((path, place, value, depth))  # what else holds its parts comes first
                continue
            visited.add(id(value))
            if isinstance(value, self._tensor):
                if self._is_on_gpu(value):
                    yield _chain(path, place), value
                continue
            steps = self._steps_from(path, place, value) if depth < _MAX_DEPTH else []
            deeper = depth + (not isinstance(value, _ERRORS))
            waiting += [(*step, deeper) for step in steps if not isinstance(step[2], _PLAIN)]

    def _steps_from(self, path: str, place: str, value: Any) -> list[Step]:
        if isinstance(value, _ERRORS):
            return _steps_of_error(path, place, value)
        is_module = isinstance(value, self._module)
        parts = self._parts_of_module(value) if is_module else _parts(value)
        return [(path + name, place, part) for name, part in parts]

    def _is_on_gpu(self, tensor: Any) -> bool:
        try:
            return bool(tensor.is_cuda) and not isinstance(tensor, self._parameter)
        except (RuntimeError, NotImplementedError):  # a subclass without storage of its own
            return False

    def _parts_of_module(self, module: Any) -> list[tuple[str, Any]]:
        attributes = list(attributes_of(module).items())
        return [(f".{name}", part) for name, part in attributes if name not in self._usual]


def _chain(path: str, place: str) -> str:
    return f"{path} in {place}" if place else path


def _steps_of_error(path: str, place: str, value: Any) -> list[Step]:
    if isinstance(value, FrameType):
        source = traceback_of(_chain(path.removesuffix(_TRACEBACK), place))
        here = f"{place_of(value)} ({source})"
        return [(name, here, part) for name, part in [*variables_of(value), *namespace_of(value)]]
    if isinstance(value, TracebackType):
        return [(path, place, frame) for frame in frames_of(value)]
    # Past any code of the exception's class.
    steps = [
        (f"{path}.{name}", place, getattr(BaseException, name).__get__(value))
        for name in _OF_EXCEPTION
    ]
    attributes = list(attributes_of(value).items())
    return steps + [(f"{path}.{name}", place, part) for name, part in attributes]


def _parts(value: Any) -> list[tuple[str, Any]]:
    """The parts of a container or a plain object, each with how to get there; not all of many.

    No code of the program's runs for it: not that of a class of its own, not `repr` of a key. Each
    is copied in one call, as other threads may change it.
    """
    if isinstance(value, dict):
        pairs = list(islice(dict.items(value), _MAX_PARTS))
        return [(_key_text(key), part) for key, part in pairs]
    for kind in _SEQUENCES:
        if isinstance(value, kind):
            parts = list(islice(kind.__iter__(value), _MAX_PARTS))
            return [(f"[{number}]", part) for number, part in enumerate(parts)]
    for kind in _SETS:
        if isinstance(value, kind):
            return [("[...]", part) for part in list(islice(kind.__iter__(value), _MAX_PARTS))]
    if isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        return [(f"({name})", part) for name, cell in cells for part in gc.get_referents(cell)]
    return [(f".{name}", part) for name, part in list(attributes_of(value).items())]


def _key_text(key: Any) -> str:
    """A key that is a name or a number; others may be anything, a path or a person's name too."""
    if type(key) is int or (type(key) is str and key.isidentifier()):
        return f"[{key!r}]"
    return "[...]"


def attributes_of(value: Any) -> dict[str, Any]:
    """An object's own attributes, past any code of its class."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return attributes if isinstance(attributes, dict) else {}
