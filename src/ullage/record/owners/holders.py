"""By which names a program holds its tensors: the chain from a variable to a tensor.

    outputs[3]             of one of the user's modules
    outputs[3] in train()  of a function that runs

A tensor that needs gradients holds its graph, and so what the graph has saved. The nodes of that
are counted, no more: to look at what they saved could compute it again.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from inspect import CO_OPTIMIZED
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from ullage.record.owners import source_location
from ullage.record.session import library

if TYPE_CHECKING:
    from ullage.trace.record_schema import HolderFields

Holder = tuple[int, int, int, str]  # position, device, address, chain
Graph = tuple[int, int, str]  # position, number of nodes, chain
# Of one look: so that it takes some hundredths of a second at most.
_MAX_DEPTH, _MAX_PARTS, _MAX_OBJECTS, _MAX_NODES = 7, 1_000, 20_000, 10_000
_MIN_BYTES = 64 << 10
_SEQUENCES: tuple[Any, ...] = (list, tuple, deque)
_SETS: tuple[Any, ...] = (set, frozenset)
_ASKS = frozenset(("locals", "vars", "eval", "exec", "dir", "f_locals"))
_PLAIN = (str, bytes, int, float, complex, type, ModuleType, CodeType, type(None))


class Holders:
    """Collects chains. One for the process."""

    def __init__(self, torch: ModuleType, *, is_on: bool) -> None:
        self._is_on = is_on
        self.rows: list[Holder] = []
        self.graphs: list[Graph] = []
        self._num_nodes_left = 0
        self._tensor: Any = torch.Tensor
        self._parameter: Any = torch.nn.Parameter
        self._module: Any = torch.nn.Module
        # What every module has: hooks, flags, and parameters, which are claimed by name.
        self._usual = frozenset(torch.nn.Module().__dict__) - {"_modules"}

    def look(self) -> None:
        """Notes who holds what now, if that is wanted."""
        if not self._is_on:
            return
        self._num_nodes_left = _MAX_NODES
        visited: set[int] = {id(self.__dict__), id(self.rows), id(self.graphs)}
        waiting = deque((name, where, value, 0) for name, where, value in _roots())
        for _ in range(_MAX_OBJECTS):
            if not waiting:
                return
            path, where, value, depth = waiting.popleft()
            if isinstance(value, _PLAIN) or id(value) in visited:
                continue
            visited.add(id(value))
            if isinstance(value, self._tensor):
                self._note(f"{path} in {where}", value)
            elif depth < _MAX_DEPTH:
                is_module = isinstance(value, self._module)
                parts = self._parts_of_module(value) if is_module else _parts(value)
                waiting += [(path + name, where, part, depth + 1) for name, part in parts]

    def _parts_of_module(self, module: Any) -> list[tuple[str, Any]]:
        attributes = list(_attributes(module).items())
        return [(f".{name}", part) for name, part in attributes if name not in self._usual]

    def columns(self) -> HolderFields:
        """What was noted, as the record has it."""
        return {
            "holders": [list(row) for row in self.rows],
            "graphs": [list(row) for row in self.graphs],
        }

    def _note(self, chain: str, tensor: Any) -> None:
        try:
            if not tensor.is_cuda or isinstance(tensor, self._parameter):
                return
            storage = tensor.untyped_storage()
            address, num_bytes = storage.data_ptr(), storage.nbytes()
            node = None if tensor._is_view() else tensor.grad_fn
        except (RuntimeError, NotImplementedError):  # a subclass without storage of its own
            return
        if address and num_bytes >= _MIN_BYTES:
            self._add((library.position(), tensor.get_device(), address, chain))
        if node is not None and self._num_nodes_left > 0:
            count = _count_nodes(node, self._num_nodes_left)
            self._num_nodes_left -= count
            self._add_graph((library.position(), count, chain))

    def _add(self, row: Holder) -> None:
        self.rows.append(row)

    def _add_graph(self, row: Graph) -> None:
        self.graphs.append(row)


def _roots() -> list[tuple[str, str, Any]]:
    """The variables of the user's modules, and of his functions that run: name, place, value."""
    variables_of_frames: list[tuple[str, str, Any]] = []
    for module in list(sys.modules.values()):
        variables = _attributes(module)
        file = variables.get("__file__")
        if isinstance(file, str) and source_location.is_users(file):
            variables_of_frames += [
                (name, Path(file).name, value) for name, value in list(variables.items())
            ]
    # This function's own frame is among them: were a variable left to hold it, frame and variable
    # would keep each other, and with them all that the frames below hold.
    frames: list[FrameType | None] = list(sys._current_frames().values())
    while frames:
        here = frames.pop()
        while here is not None:
            if source_location.is_users(here.f_code.co_filename):
                variables_of_frames += _locals(here)
            here = here.f_back
    return variables_of_frames


def _locals(frame: FrameType) -> list[tuple[str, str, Any]]:
    """The variables of a running function.

    Before Python 3.13 a frame keeps the dict that it answers with, and so every variable a second
    time: it is emptied, unless the function may have asked for it itself.
    """
    code = frame.f_code
    if not code.co_flags & CO_OPTIMIZED or not _ASKS.isdisjoint(code.co_names):
        return []
    variables = frame.f_locals
    rows = [(name, f"{code.co_name}()", value) for name, value in list(variables.items())]
    if sys.version_info < (3, 13):
        variables.clear()
    return rows


def _parts(value: Any) -> list[tuple[str, Any]]:
    """Of a container or a plain object what it holds, each with how to get there; not all of many.

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
    return [(f".{name}", part) for name, part in list(_attributes(value).items())]


def _key_text(key: Any) -> str:
    """A key that is a name or a number; others may be anything, a path or a person's name too."""
    if type(key) is int or (type(key) is str and key.isidentifier()):
        return f"[{key!r}]"
    return "[...]"


def _attributes(value: Any) -> dict[str, Any]:
    """An object's own attributes, past any code of its class."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return attributes if isinstance(attributes, dict) else {}


def _count_nodes(node: Any, limit: int) -> int:
    """How many nodes a graph has; not much more than a limit."""
    visited, waiting = {node}, [node]
    while waiting and len(visited) < limit:
        for following, _ in waiting.pop().next_functions:
            if following is not None and following not in visited:
                visited.add(following)
                waiting.append(following)
    return len(visited)
