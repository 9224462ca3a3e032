"""The time of a CUDA graph: its longest stream, counted when the graph is first played."""

from __future__ import annotations

import pytest

from ullage.clock.cost import Category, Cost
from ullage.clock.duration import Duration
from ullage.players.phantom.virtual_time import _GraphSeconds


def cost(seconds: float) -> Cost:
    return Cost(
        Duration(seconds / 2, seconds, 2 * seconds, "made up"), Category.MEMORY_BOUND, "kernel"
    )


def row(graph: int, work: int, lane: int = 0) -> tuple[int, ...]:
    return (graph, work, 0, 0, lane, 7, 0)


def test_a_graph_takes_its_longest_stream() -> None:
    graphs = _GraphSeconds([cost(1.0), cost(2.0)])
    graphs.note([row(5, 0), row(5, 0), row(5, 1, lane=1), row(6, 1)])
    assert graphs[5] == pytest.approx(2.0) and graphs[6] == 2.0
    assert (graphs.num_rows, len(graphs), sorted(graphs)) == (4, 2, [5, 6])


def test_a_graph_grows_until_it_is_played_and_none_takes_nothing() -> None:
    costs = [cost(1.0)]
    graphs = _GraphSeconds(costs)
    graphs.note([row(5, 0)])
    assert graphs[5] == 1.0
    costs.append(cost(3.0))  # what is captured later may be of later pieces of work
    graphs.note([row(5, 1)])
    assert graphs[5] == 4.0
    assert graphs.get(9, 0.0) == 0.0
