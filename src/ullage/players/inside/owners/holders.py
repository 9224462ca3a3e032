"""By which names a program holds its tensors: the chain from a variable to a tensor.

    outputs[3]             of one of the user's modules
    outputs[3] in train()  of a function that runs
    Out[3]                 of an interactive session (notebook.py), or of an exception (chains.py)

A tensor that needs gradients holds its graph, and so what the graph has saved. The nodes of that
are counted, no more: to look at what they saved could compute it again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ullage.players.inside import library
from ullage.players.inside.owners import notebook, source_location
from ullage.players.inside.owners.chains import Search, Step, attributes_of
from ullage.players.inside.owners.frames import place_of, running_frames, variables_of

if TYPE_CHECKING:
    from ullage.log.record_schema import HolderFields

Holder = tuple[int, int, int, str]  # position, device, address, chain
Graph = tuple[int, int, str]  # position, number of nodes, chain
_MAX_NODES = 10_000  # of one look
MIN_BYTES = 64 << 10


class Holders:
    """Collects chains. One for the process.

    max_rows: of a program that is looked at again and again, for as long as it runs: then of each
        block and chain the last row is kept, and of each chain its largest graph; at most
        this many of both, the latest. None: all are kept.
    """

    def __init__(self, torch: ModuleType, max_rows: int | None) -> None:
        self._max_rows = max_rows
        self.rows: list[Holder] = []
        self.graphs: list[Graph] = []
        self._num_nodes_left = 0
        self._search = Search(torch)

    def look(self) -> None:
        """Notes who holds what now.

        The variables are searched first, and what a session keeps for itself: a tensor that only
        outputs of cells or exceptions hold is one that the program has done with.
        """
        self._num_nodes_left = _MAX_NODES
        own = (self.__dict__, self.rows, self.graphs)
        for roots in (variable_roots(), notebook.outputs(), notebook.last_errors()):
            for chain, tensor in self._search.tensors(roots, own):
                self._note(chain, tensor)
        if self._max_rows is not None:
            self._keep_latest(self._max_rows)

    def _keep_latest(self, max_rows: int) -> None:
        latest: dict[tuple[int, int, str], Holder] = {}
        for row in self.rows:
            latest.pop(row[1:], None)  # so that the rows stay in their order
            latest[row[1:]] = row
        self.rows[:] = list(latest.values())[-max_rows:]
        largest: dict[str, Graph] = {}
        for graph in self.graphs:
            known = largest.pop(graph[2], graph)
            largest[graph[2]] = max(known, graph, key=lambda row: row[1])
        self.graphs[:] = list(largest.values())[-max_rows:]

    def keep_from(self, first: int) -> None:
        """Forgets what was noted before a position."""
        self.rows[:] = [row for row in self.rows if row[0] >= first]
        self.graphs[:] = [row for row in self.graphs if row[0] >= first]

    def columns(self) -> HolderFields:
        """The notes, in the record's form."""
        return {
            "holders": [list(row) for row in self.rows],
            "graphs": [list(row) for row in self.graphs],
        }

    def _note(self, chain: str, tensor: Any) -> None:
        try:
            storage = tensor.untyped_storage()
            address, num_bytes = storage.data_ptr(), storage.nbytes()
            node = None if tensor._is_view() else tensor.grad_fn
        except (RuntimeError, NotImplementedError):  # a subclass without storage of its own
            return
        if address and num_bytes >= MIN_BYTES:
            self.rows.append((library.position(), tensor.get_device(), address, chain))
        if node is not None and self._num_nodes_left > 0:
            count = _count_nodes(node, self._num_nodes_left)
            self._num_nodes_left -= count
            self.graphs.append((library.position(), count, chain))


def variable_roots() -> list[Step]:
    """The variables of the user's modules and session, and of his functions that run."""
    roots: list[Step] = []
    for module in list(sys.modules.values()):
        variables = attributes_of(module)
        file = variables.get("__file__")
        if isinstance(file, str) and source_location.is_users(file):
            roots += [(name, Path(file).name, value) for name, value in list(variables.items())]
    roots += notebook.variables()
    for frame in running_frames():
        name = frame.f_code.co_filename
        if source_location.is_users(name) or notebook.is_typed(name):
            place = place_of(frame)
            roots += [(name, place, value) for name, value in variables_of(frame)]
    return roots


def _count_nodes(node: Any, limit: int) -> int:
    """Counts the nodes of a graph; not much further than a limit."""
    visited, waiting = {node}, [node]
    while waiting and len(visited) < limit:
        for following, _ in waiting.pop().next_functions:
            if following is not None and following not in visited:
                visited.add(following)
                waiting.append(following)
    return len(visited)
