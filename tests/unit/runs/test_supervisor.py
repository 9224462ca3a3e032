"""When a program is started again, under what, and what is said of it."""

from __future__ import annotations

from ullage.act.techniques.made_for import MadeFor
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Action
from ullage.search.runs.supervisor import Start, supervise

MADE_FOR = MadeFor("2.15.0", "GPT", 10, {"h.0": "Block", "h.1": "Block"}, "AdamW")
HALF = Plan((Action("checkpoint", ("h.0",)),), MADE_FOR)
ALL = Plan((Action("checkpoint", ("h.0", "h.1")),), MADE_FOR)
RESUME = ("--resume", "my last.pt")
Started = list[tuple[int, Plan | None, tuple[str, ...]]]


def supervised(
    failures: list[str | None], plans: list[Plan] | None, chosen: tuple[Plan, ...] = ()
) -> tuple[int, Started, list[str]]:
    """The number of the last start, what each was started with, and what was said."""
    started: Started = []
    said: list[str] = []

    def start(number: int, plan: Plan | None, words: tuple[str, ...]) -> Start[int]:
        started.append((number, plan, words))
        return Start(number, failures[number], () if number else chosen)

    return supervise(start, plans, RESUME, said.append), started, said


def test_a_start_that_ended_otherwise_is_the_last() -> None:
    assert supervised([None], [HALF, ALL]) == (0, [(0, None, ())], [])


def test_each_restart_has_the_next_rung_and_the_words_to_go_on() -> None:
    result, started, said = supervised(["rank 1 ran out", "rank 0 ran out", None], [HALF, ALL])
    assert result == 2
    assert started == [(0, None, ()), (1, HALF, RESUME), (2, ALL, RESUME)]
    first, second = said
    assert first == (
        "ullage: guard: rank 1 ran out on rung 0 (the unchanged program): started again on rung 1 "
        "(checkpoint (1 modules)) with --resume 'my last.pt'"
    )
    assert second.startswith("ullage: guard: rank 0 ran out on rung 1 (checkpoint (1 modules)): ")


def test_there_are_as_many_starts_as_rungs() -> None:
    result, started, said = supervised(["it ran out"] * 2, [HALF])
    assert (result, len(started)) == (1, 2)
    last = "ullage: guard: it ran out on rung 1 (checkpoint (1 modules)); no rung is left"
    assert said[-1] == last


def test_without_a_ladder_the_rungs_are_those_that_the_program_chose() -> None:
    _, started, _ = supervised(["it ran out", "it ran out", None], None, (HALF, ALL))
    assert [plan for _, plan, _ in started] == [None, HALF, ALL]
    result, _, said = supervised(["it ran out"], None)
    assert result == 0
    assert said[0].endswith(
        "no rung is left; the default rungs are for a model with repeated blocks that was called"
    )
