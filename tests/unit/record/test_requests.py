"""Requests: parts of a replay, steps where none runs, and users who take turns."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from ullage.ground.errors import SpecError
from ullage.players.inside.requests.concurrent_callers import Users, pass_on
from ullage.players.inside.requests.requests import (
    Noted,
    Request,
    answered_by,
    as_steps,
    in_parts,
    note,
    read_notes,
    read_requests,
)


def make(count: int) -> list[Request]:
    return [Request(f"r.jsonl:{number}", {}) for number in range(1, count + 1)]


def test_a_file_is_read_with_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"a": 1}\n\n{"b": 2}\n{"c": 3}\n')
    assert read_requests(path, 2) == (
        Request("r.jsonl:1", {"a": 1}),
        Request("r.jsonl:3", {"b": 2}),
    )
    for line in ('{"a": ' + "[" * 5000, '{"a": NaN}'):
        path.write_text(line)
        with pytest.raises(SpecError, match=r"r.jsonl:1: .*expected a JSON object"):
            read_requests(path, 1)


@pytest.mark.parametrize(
    ("count", "users", "sizes"),
    [(3, 1, [1, 1, 1]), (8, 8, [8]), (20, 8, [8, 8, 4]), (200, 8, [32] * 6 + [8]), (2, 8, [2])],
)
def test_parts_have_all_users_in_them_and_all_requests(
    count: int, users: int, sizes: list[int]
) -> None:
    requests = make(count)
    parts = list(in_parts(requests, users))
    assert [len(part) for part in parts] == sizes
    assert [request for part in parts for request in part] == requests


def test_notes_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert read_notes(tmp_path) == []
    first = Noted("r.jsonl:1", {7: 0}, {7: 5, 8: 2})
    second = Noted("r.jsonl:2", {7: 5, 8: 2}, {7: 9, 8: 4}, "HTTP 500: no", is_out_of_memory=True)
    note(tmp_path, first)
    note(tmp_path, second)
    assert read_notes(tmp_path) == [first, second]
    # A process that was not there when a request began has all of it.
    assert answered_by(8, tmp_path) == [
        ["r.jsonl:1", 0, 2, "", False], ["r.jsonl:2", 2, 4, "HTTP 500: no", True],
    ]  # fmt: skip
    assert answered_by(9, tmp_path) == []


def test_a_step_ends_where_no_request_runs() -> None:
    marks = [[3, "forward_begin", {}], [4, "forward_end", None], [4, "step", 0], [9, "step", 1]]
    assert as_steps(marks, []) == marks
    one_by_one = [["a", 0, 5, "", False], ["b", 5, 9, "", False]]
    assert [mark for mark in as_steps(marks, one_by_one) if mark[1] == "step"] == [
        [5, "step", 0], [9, "step", 1],
    ]  # fmt: skip
    at_once = [["a", 0, 5, "", False], ["b", 3, 9, "", False], ["c", 9, 12, "", False]]
    steps = as_steps(marks, at_once)
    assert [mark for mark in steps if mark[1] == "step"] == [[9, "step", 0], [12, "step", 1]]
    assert steps[:2] == marks[:2]


def record_turns(users: int, requests: int, turns: int) -> list[str]:
    """Who was at work when, each request taking so many turns."""
    calls: list[str] = []

    def answer(request: Request) -> None:
        for turn in range(turns):
            calls.append(f"{request.where.rpartition(':')[2]}.{turn}")
            if turn + 1 < turns:
                pass_on()

    Users(users, make(requests), answer).run()
    return calls


def test_users_take_turns_in_order() -> None:
    # Two parts of two, as both are waited for in between.
    assert record_turns(2, 4, 2) == ["1.0", "2.0", "1.1", "2.1", "3.0", "4.0", "3.1", "4.1"]
    # Who is done takes the next request in the same turn.
    assert record_turns(2, 12, 2)[:6] == ["1.0", "2.0", "1.1", "3.0", "2.1", "3.1"]
    first = record_turns(3, 50, 4)
    assert all(record_turns(3, 50, 4) == first for _ in range(5)), "each time the same"
    assert len(first) == 200 == len(set(first))


def test_outside_of_users_there_are_no_turns() -> None:
    pass_on()


def test_what_an_answer_raises_is_raised() -> None:
    def answer(request: Request) -> None:
        pass_on()
        if request.where.endswith(":3"):
            raise ValueError(request.where)

    with pytest.raises(ValueError, match=r"^r.jsonl:3$"):
        Users(2, make(9), answer).run()


def test_who_only_takes_long_is_not_passed_over() -> None:
    """Computing in Python, whose lock is wanted by whoever looks."""
    running: list[str] = []

    def answer(request: Request) -> None:
        running.append(request.where)
        until_s = time.thread_time() + 0.15
        while time.thread_time() < until_s:
            assert running == [request.where]
        running.remove(request.where)
        pass_on()

    Users(2, make(4), answer).run()


def test_who_waits_for_another_is_passed_over() -> None:
    """A lock around the model: its holder gives the turn to one that wants the lock."""
    lock, answered = threading.Lock(), []

    def answer(request: Request) -> None:
        with lock:
            pass_on()
            answered.append(request.where)

    started_s = time.monotonic()
    Users(3, make(6), answer).run()
    assert sorted(answered) == [request.where for request in make(6)]
    assert time.monotonic() - started_s < 30
