"""The program's variables that keep blocks alive, such as "outputs[...] in train()"."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ullage.explain.owners.matching import Match
from ullage.ground.protocol.holder_chains import Root, root_of
from ullage.log.blocks import find_blocks
from ullage.log.model import GraphHolder

Chains = dict[int, dict[int, list[str]]]  # of each block, by the position of the search
_INDEX = re.compile(r"(?<!^Out)\[(\d+|\.\.\.)\]")  # the number of a cell stays


@dataclass(frozen=True, slots=True)
class Leftover:
    """A block that the program has done with, and that something still holds.

    Attributes:
        block: its number in `Replay.blocks`.
        event: of the trace; since then at the latest no variable has held it.
        at_oom: whether it was there when memory ran out, the last time.
        chains: what holds it.
        has_graph: whether it holds the graph of the pass that made it; False also where a variable
            held a graph then, which may be the same.
    """

    block: int
    event: int
    at_oom: bool
    chains: tuple[str, ...]
    has_graph: bool


@dataclass(frozen=True, slots=True)
class Holders:
    """The names of the variables that keep blocks alive.

    Attributes:
        chain: the name for each block, by its number in `Replay.blocks`; some blocks have none.
        graph: the tensor that kept the largest autograd graph alive in any search, with its name;
            None if no graph was kept.
        leftovers: the blocks that in the last searches no variable held, only outputs of cells and
            exceptions.
    """

    chain: dict[int, str]
    graph: GraphHolder | None
    leftovers: tuple[Leftover, ...] = ()

    def name(self, blocks: Iterable[int]) -> str | None:
        """The most frequent name of these blocks, without the indices in lists; None: no name."""
        names = Counter(self.chain[block] for block in blocks if block in self.chain)
        return names.most_common(1)[0][0] if names else None


def find_holders(match: Match) -> Holders:
    """Finds the names that the record has for the blocks of the trace; the last one if several, and
    that of a variable where it has one.
    """
    record = match.record
    table = np.array(
        [(holder.position, holder.device, holder.address) for holder in record.holders],
        dtype=np.int64,
    ).reshape(-1, 3)
    rows = find_blocks(match.recorded, table[:, 0], table[:, 1], table[:, 2])
    block_of = {row: block for block, row in enumerate(match.row.tolist()) if row >= 0}
    chains: Chains = {}
    for row, holder in zip(rows.tolist(), record.holders, strict=True):
        if row in block_of:
            chain = _INDEX.sub("[...]", holder.chain)
            searches = chains.setdefault(block_of[row], {})
            searches.setdefault(holder.position, []).append(chain)
    shown: dict[int, str] = {}
    for block, searches in chains.items():
        # The last chain of a variable, or the first of what a session keeps.
        last = searches[max(searches)]
        variables = [chain for chain in last if root_of(chain) is Root.VARIABLE]
        shown[block] = variables[-1] if variables else last[0]
    return Holders(
        chain=shown,
        graph=max(record.graphs, key=lambda graph: graph.num_nodes, default=None),
        leftovers=tuple(_find_leftovers(match, chains)),
    )


def _find_leftovers(match: Match, chains: Chains) -> Iterator[Leftover]:
    graphs: dict[int, set[str]] = {}  # the chains of the tensors that had one, by the search
    for graph in match.record.graphs:
        graphs.setdefault(graph.position, set()).add(_INDEX.sub("[...]", graph.chain))
    last_oom = max((oom.position for oom in match.record.ooms), default=-1)
    for block, searches in chains.items():
        since = _left_since(searches)
        if since is None:
            continue
        event = match.event_after(np.array([since], dtype=np.int64))[0]
        death = int(match.recorded.death[match.row[block]]) + match.record.first_position + 1
        names = tuple(dict.fromkeys(searches[max(searches)]))
        of_search = graphs.get(since, set())
        has_graph = not of_search.isdisjoint(searches[since]) and not any(
            root_of(chain) is Root.VARIABLE for chain in of_search
        )
        yield Leftover(block, int(event), since <= last_oom < death, names, has_graph)


def _left_since(searches: dict[int, list[str]]) -> int | None:
    """The first of the last searches that found no variable; None: the last one did."""
    since = None
    for position in sorted(searches, reverse=True):
        if any(root_of(chain) is Root.VARIABLE for chain in searches[position]):
            break
        since = position
    return since
