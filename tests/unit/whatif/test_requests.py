"""A trace as requests: what is asked for, when caches are emptied, what came before."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from ullage.ground.programs.allocator_replay import ATTEMPT, EMPTY_CACHE, POOL, RETRY, read_columns
from ullage.ground.units import MIB
from ullage.log.replay import replay
from ullage.log.requests import Requests, find_requests
from ullage.log.snapshot import Snapshot

Make = Callable[..., Snapshot]


@pytest.fixture
def requests_of(make_snapshot: Make) -> Callable[..., Requests]:
    def find(script: str, **options: bool) -> Requests:
        snapshot = make_snapshot(script, **options)
        return find_requests(snapshot, replay(snapshot), 0)

    return find


def words(requests: Requests, column: str = "ops") -> list[str]:
    """+0 allocates block 0, -0 frees it; other operations by their kind and argument."""
    names = {EMPTY_CACHE: "e", RETRY: "r", ATTEMPT: "!", POOL: "p"}
    count = len(requests.sizes)
    found = []
    for op in getattr(requests, column).tolist():
        if op >= 0:
            found.append(f"+{op}" if op < count else f"-{op - count}")
        else:
            found.append(f"{names[-op & 7]}{-op >> 3}")
    return found


def test_allocations_and_frees_come_in_the_order_of_the_events(
    requests_of: Callable[..., Requests],
) -> None:
    requests = requests_of("+a +b -a +c -c")
    assert words(requests) == ["+0", "+1", "-0", "+2", "-2"]
    assert requests.sizes.tolist() == [MIB] * 3
    assert words(requests, "as_it_lay") == words(requests, "packed") == []


def test_a_cache_that_the_program_empties_is_emptied_once(
    requests_of: Callable[..., Requests],
) -> None:
    requests = requests_of("+a +b -a -b e +c +d", has_stacks=True)
    assert words(requests) == ["+0", "+1", "-0", "-1", "e0", "+2", "+3"]
    assert (requests.num_emptied, requests.num_retries) == (1, 0)


def test_a_cache_that_the_allocator_gives_back_has_the_stack_of_what_needed_it(
    requests_of: Callable[..., Requests],
) -> None:
    assert words(requests_of("+a +b -a r +c", has_stacks=True))[3] == "r0"
    assert words(requests_of("+a +b -a e +c", has_stacks=True))[3] == "e0"


@pytest.mark.parametrize("has_stacks", [False, True])
def test_memory_was_short_only_if_there_would_have_been_more_than_ever(
    requests_of: Callable[..., Requests], *, has_stacks: bool
) -> None:
    # With b there would have been 4 MiB, and later there were.
    assert words(requests_of("+a -a r +b +c", has_stacks=has_stacks))[2] == "e0"
    assert words(requests_of("+a -a r !64", has_stacks=has_stacks))[2:] == ["r0", f"!{64 * MIB}"]


def test_a_failed_request_is_asked_for_again(requests_of: Callable[..., Requests]) -> None:
    requests = requests_of("+a !64 -a")
    assert words(requests) == ["+0", f"!{64 * MIB}", "-0"]
    assert requests.num_failed == 1


def test_what_came_before_is_laid_out_with_its_holes_or_packed(
    requests_of: Callable[..., Requests],
) -> None:
    requests = requests_of("+a +b -a | +c -b")
    # Segment a is empty: two fillers of 1 MiB; beside b there is one.
    assert words(requests, "packed") == ["+0"]
    assert words(requests, "as_it_lay") == ["+2", "+3", "+0", "+4", "-2", "-3", "-4"]
    assert requests.sizes.tolist() == [MIB] * 5
    assert words(requests) == ["+1", "-0"]


def test_blocks_of_a_private_pool_are_allocated_in_one(
    requests_of: Callable[..., Requests],
) -> None:
    assert words(requests_of("+a +p:1 +q:1 +b")) == ["+0", "p1", "+1", "+2", "p0", "+3"]


def test_the_file_reads_back(requests_of: Callable[..., Requests], tmp_path: Path) -> None:
    requests = requests_of("+a +b -a | +c")
    path = tmp_path / "requests"
    requests.write(path)
    read = read_columns(str(path))
    assert read["ops"] == requests.ops.tolist()
    assert read["as_it_lay"] == requests.as_it_lay.tolist()
    head, _, body = path.read_bytes().partition(b"\n")
    assert sum(json.loads(head).values()) == len(array("q", body))
