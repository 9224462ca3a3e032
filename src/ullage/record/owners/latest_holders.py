"""Holders of a program that is looked at again and again, for as long as it runs."""

from __future__ import annotations

from types import ModuleType

from ullage.record.owners.holders import Graph, Holder, Holders


class LatestHolders(Holders):
    """Keeps of each block and chain the last row, and of each chain its largest graph; no more than
    `max_rows` of both, the latest.
    """

    def __init__(self, torch: ModuleType, *, max_rows: int) -> None:
        super().__init__(torch, is_on=True)
        self._max_rows = max_rows

    def keep_from(self, first: int) -> None:
        """Forgets what was noted before a position."""
        self.rows[:] = [row for row in self.rows if row[0] >= first]
        self.graphs[:] = [row for row in self.graphs if row[0] >= first]

    def look(self) -> None:
        """Notes who holds what now; the rows of before stay where they say something else."""
        super().look()
        latest: dict[tuple[int, int, str], Holder] = {}
        for row in self.rows:
            latest.pop(row[1:], None)  # so that the rows stay in their order
            latest[row[1:]] = row
        self.rows[:] = list(latest.values())[-self._max_rows :]
        largest: dict[str, Graph] = {}
        for graph in self.graphs:
            known = largest.pop(graph[2], graph)
            largest[graph[2]] = max(known, graph, key=lambda row: row[1])
        self.graphs[:] = list(largest.values())[-self._max_rows :]
