"""What the log of work says of communicators: where their ranks are, and their channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ullage.clock.given_work import CollectiveCall
from ullage.clock.reading import given_work
from ullage.ground.units import MIB

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]
OPTIONS = ("--world-size", "8", "[run] local_world_size = 4", "--time")


def collectives(outcome: Any) -> dict[int, CollectiveCall]:
    """By the kilobytes of float32 that places.py reduces."""
    assert outcome.exit_code == 0, outcome.stderr
    works = [given_work(row) for row in outcome.record.work_log.works]
    return {work.num_bytes // 4000: work for work in works if isinstance(work, CollectiveCall)}


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 5])
@pytest.mark.parametrize("how", ["", "split"])
def test_ranks_of_a_group_may_be_on_one_machine_or_on_each(
    run_program: RunProgram, rank: int, how: str
) -> None:
    found = collectives(
        run_program("distributed/places.py", how, options=(*OPTIONS, "--rank", str(rank)))
    )
    assert {number: (work.num_gpus, work.num_local) for number, work in found.items()} == {
        1: (8, 4), 2: (4, 4), 3: (2, 1), 4: (8, 4),
    }  # fmt: skip
    assert [found[number].most_channels for number in (1, 4)] == [0, 4]


@pytest.mark.slow
def test_the_environment_limits_channels(
    run_program: RunProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_MAX_NCHANNELS", "12")
    monkeypatch.setenv("NCCL_MIN_CTAS", "2")
    found = collectives(run_program("distributed/places.py", options=OPTIONS))
    assert {(work.least_channels, work.most_channels) for work in found.values()} == {
        (2, 12), (2, 4),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("what", "num_peers", "num_neighbours"), [("all_to_all", 7, 0), ("all_gather", 0, 2)]
)
def test_a_collective_connects_those_that_it_talks_to(
    run_program: RunProgram, what: str, num_peers: int, num_neighbours: int
) -> None:
    """NCCL sends the parts of an all-to-all as messages, a connection for each pair of ranks."""
    options = ("--world-size", "8", "[run] local_world_size = 8")
    outcome = run_program("distributed/root_messages.py", what, options=options)
    (totals,) = [each for each in outcome.record.devices if each.index == 0]
    held = {each.what: each.high_bytes for each in totals.outside}
    per_peer = 32 * (10 + 2) * MIB  # channels, and the buffers of each that receive and send
    assert held.get("NCCL's buffers for messages", 0) == num_peers * per_peer
    assert held.get("NCCL's buffers for collectives", 0) == num_neighbours * per_peer
