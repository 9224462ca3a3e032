"""Programs that wait, under `--clock virtual`: none hangs, none ends wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.phantom, pytest.mark.fresh, pytest.mark.slow]
RunProgram = Callable[..., Any]

VIRTUAL = ("--clock", "virtual")
WAIT_S = 0.2  # of ways_to_wait.py
# The device's work of a poll, and what this machine needs beside, is far below the limit of 60 s.
POLLS = ("poll_events", "poll_and_sleep", "poll_in_a_thread")
# Waits of so long that the interpreter or the system ends.
REAL = (
    "monotonic", "condition", "condition_for", "empty_queue", "event_loop", "child", "selected",
    "alarm", "loader",
)  # fmt: skip
# Waits of which the program's clock says how long; it does not count what passes between two pieces
# of work without a question.
SHOWN = ("sleep", "perf_counter")


@pytest.fixture(scope="module")
def waits(run_program: RunProgram) -> dict[str, dict[str, Any]]:
    """What ways_to_wait.py says of each way."""
    outcome = run_program("ways_to_wait.py", options=VIRTUAL)
    assert outcome.exit_code == 0, outcome.stderr
    told: dict[str, dict[str, Any]] = outcome.printed
    return told


@pytest.mark.parametrize("way", [*POLLS, *REAL, "sleep", "perf_counter"])
def test_each_wait_ends_as_it_should(waits: dict[str, dict[str, Any]], way: str) -> None:
    assert waits[way]["is_done"]


@pytest.mark.parametrize("way", REAL)
def test_waits_of_the_system_last_as_long_as_without(
    waits: dict[str, dict[str, Any]], way: str
) -> None:
    assert waits[way]["monotonic_s"] >= WAIT_S * 0.9


@pytest.mark.parametrize("way", SHOWN)
def test_the_clock_shows_the_wait(waits: dict[str, dict[str, Any]], way: str) -> None:
    assert waits[way]["perf_counter_s"] >= WAIT_S * 0.99


def test_a_poll_lasts_as_long_as_the_work(waits: dict[str, dict[str, Any]]) -> None:
    """To the microseconds of the questions; the thread's work is the same."""
    first, other = (waits[way]["perf_counter_s"] for way in ("poll_events", "poll_in_a_thread"))
    assert first == pytest.approx(waits["synchronize"]["perf_counter_s"], rel=0.02)
    assert other == pytest.approx(first, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("--world-size", "2", "--rank", "0"),
        pytest.param(("--world-size", "8", "--rank", "3"), marks=pytest.mark.nightly),
    ],
)
def test_a_rank_waits_for_collectives(run_program: RunProgram, options: tuple[str, ...]) -> None:
    """With a time limit of NCCL's watchdog that is longer than any wait."""
    outcome = run_program("ways_to_wait.py", "rank", options=(*VIRTUAL, *options))
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.printed["rank"]["is_done"]
