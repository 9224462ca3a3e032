"""What is raised, and what came before, as it is shown beside samples."""

from __future__ import annotations

from ullage.operate.watch.alerts.board import Board
from ullage.operate.watch.alerts.event import Change
from ullage.operate.watch.alerts.rules_file import DEFAULTS
from ullage.operate.watch.sample import DeviceSample, Sample


def sample(second: int, *lost: int) -> Sample:
    """Two GPUs, of which some are lost."""
    devices = tuple(
        DeviceSample(index, f"GPU-{index}", None, is_lost=index in lost) for index in range(2)
    )
    return Sample(1000.0 + second, "node", devices)


def test_the_newest_incident_is_first_and_leaves_when_it_is_over() -> None:
    board = Board(DEFAULTS)
    assert board.take(sample(0)).active == ()
    board.take(sample(1, 0))
    board.take(sample(2, 0, 1))
    assert [event.subject.gpu_index for event in board.alerts.active] == [1, 0]
    assert board.alerts.active[0].since_s == 1002.0
    alerts = board.take(sample(3, 0))
    assert [event.subject.gpu_index for event in alerts.active] == [0]
    assert [event.change for event in alerts.events] == [
        Change.CLEARED, Change.RAISED, Change.RAISED,
    ]  # fmt: skip


def test_the_history_is_bounded() -> None:
    board = Board(DEFAULTS)
    for second in range(1000):
        board.take(sample(second, *[0] * (second % 2)))
    assert len(board.alerts.events) == 200


def test_following_a_stream_changes_nothing_in_it() -> None:
    samples = [sample(second, 0) for second in range(3)]
    board = Board(DEFAULTS)
    assert list(board.follow(iter(samples))) == samples
    assert len(board.alerts.active) == 1
