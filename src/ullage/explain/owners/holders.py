"""The program's variables that keep blocks alive, such as "outputs[...] in train()"."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ullage.explain.owners.matching import Match
from ullage.trace.lifetime import find_blocks
from ullage.trace.model import GraphHolder

_INDEX = re.compile(r"\[(\d+|\.\.\.)\]")


@dataclass(frozen=True, slots=True)
class Holders:
    """The names of the variables that keep blocks alive.

    Attributes:
        chain: the name for each block, by its number in `Replay.blocks`; some blocks have none.
        graph: the tensor that kept the largest autograd graph alive in any search, with its name;
            None if no graph was kept.
    """

    chain: dict[int, str]
    graph: GraphHolder | None

    def name(self, blocks: Iterable[int]) -> str | None:
        """The most frequent name of these blocks, without the indices in lists; None: no name."""
        names = Counter(self.chain[block] for block in blocks if block in self.chain)
        return names.most_common(1)[0][0] if names else None


def find_holders(match: Match) -> Holders:
    """Finds the names that the record has for the blocks of the trace; the last one if several."""
    record = match.record
    table = np.array(
        [(holder.position, holder.device, holder.address) for holder in record.holders],
        dtype=np.int64,
    ).reshape(-1, 3)
    rows = find_blocks(match.lifetimes, table[:, 0], table[:, 1], table[:, 2])
    block_of = {row: block for block, row in enumerate(match.row.tolist()) if row >= 0}
    chain = {
        block_of[row]: _INDEX.sub("[...]", holder.chain)
        for row, holder in zip(rows.tolist(), record.holders, strict=True)
        if row in block_of
    }
    graph = max(record.graphs, key=lambda graph: graph.num_nodes, default=None)
    return Holders(chain, graph)
