"""When pieces of work begin and end, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ullage.clock.simulation import HostCosts, Player, Run, WorkTimes, simulate
from ullage.log.record_schema import WORK_MARKS
from ullage.log.work_log import EntryKind

HOST = HostCosts(launch_s=1.0, graph_s=2.0)
SECONDS = (10.0, 100.0, 0.5)  # of the pieces of work 0, 1, 2
STEP = WORK_MARKS.index("step")
Row = tuple[int, int, int, int, int, int, int]


def given(work: int, lane: int = 0, device: int = 0) -> Row:
    return (0, work, -1, 0, lane, EntryKind.GIVEN, device)


def row(kind: EntryKind, lane: int = 0, other: int = 0, work: int = 0) -> Row:
    return (other, work, -1, 0, lane, kind, 0)


def play(rows: Sequence[Row], first: int = 0) -> Run:
    return simulate(rows, first, WorkTimes(SECONDS, {7: 50.0}), HOST)


def test_a_stream_is_a_queue() -> None:
    run = play([given(0), given(0), given(2)])
    assert run.starts == [1.0, 11.0, 21.0] and run.ends == [11.0, 21.0, 21.5]


def test_a_stream_waits_for_the_host() -> None:
    run = play([given(2), given(2)])
    assert run.starts == [1.0, 2.0] and run.ends == [1.5, 2.5]


def test_streams_run_side_by_side() -> None:
    run = play([given(0), given(0, lane=1)])
    assert run.starts == [1.0, 2.0] and run.ends == [11.0, 12.0]


def test_a_stream_waits_for_an_event_of_another() -> None:
    rows = [
        given(0),
        row(EntryKind.RECORDED),
        given(1),
        row(EntryKind.WAITED, 1, other=2),
        given(0, 1),
    ]
    run = play(rows)
    assert run.starts[4] == 11.0  # when the first piece is done, not the second
    later = play(
        [*rows[:1], rows[2], row(EntryKind.RECORDED), row(EntryKind.WAITED, 1, other=3), rows[4]]
    )
    assert later.starts[4] == 111.0


def test_a_serial_number_counts_the_rows_that_were_dropped() -> None:
    rows = [given(0), row(EntryKind.RECORDED), row(EntryKind.WAITED, 1, other=502), given(0, 1)]
    assert play(rows, first=500).starts[3] == 11.0
    assert play(rows, first=0).starts[3] == 2.0  # the record is not there: it happened long ago


@pytest.mark.parametrize(
    ("wait", "until"),
    [
        (row(EntryKind.HOST_WAITED_LANE, 0), 11.0),
        (row(EntryKind.HOST_WAITED_LANE, 1), 102.0),
        (row(EntryKind.HOST_WAITED_DEVICE), 102.0),
        (row(EntryKind.HOST_WAITED_EVENT, other=2), 11.0),
    ],
)
def test_the_host_waits(wait: Row, until: float) -> None:
    run = play([given(0), row(EntryKind.RECORDED), given(1, 1), wait, given(2)])
    assert run.starts[4] == pytest.approx(max(until + 1.0, 11.0))
    assert run.host_waits == [(3, 2.0, until)]


def test_the_device_of_a_stream_is_looked_at() -> None:
    run = play([given(1, lane=1, device=1), given(0), row(EntryKind.HOST_WAITED_DEVICE), given(2)])
    assert run.starts[3] == 13.0  # device 0 is done at 12


def test_the_host_waits_for_the_oldest_of_1024_pieces() -> None:
    run = simulate([given(0)] * 1026, 0, WorkTimes(SECONDS, {}), HostCosts(0.0, 0.0))
    assert run.ends[1025] == 10260.0
    marked = simulate(
        [*[given(0)] * 1026, row(EntryKind.MARKED, work=STEP)],
        0,
        WorkTimes(SECONDS, {}),
        HostCosts(0.0, 0.0),
    )
    assert marked.moments[0].host_s == 20.0 and marked.moments[0].done_s == 10260.0


def test_a_graph_is_given_once() -> None:
    run = play([row(EntryKind.GRAPH, other=7), given(2)])
    assert run.starts == [2.0, 52.0] and run.ends == [52.0, 52.5]


def test_a_step_ends_when_its_work_is_done() -> None:
    run = play([given(0), row(EntryKind.MARKED, work=STEP, other=1), given(0)])
    (moment,) = run.moments
    assert (moment.entry, moment.number, moment.host_s, moment.done_s) == (1, 1, 1.0, 11.0)


def test_a_player_plays_what_comes_later() -> None:
    seconds: list[float] = []
    player = Player(0, WorkTimes(seconds, {}), HOST)
    seconds.append(3.0)
    player.play(given(0))
    player.play(row(EntryKind.RECORDED))
    assert player.host_s == 1.0 and player.record_s(2) == 4.0 and player.record_s(9) is None
