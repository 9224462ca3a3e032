"""A cache with a budget in bytes: what stays is worth most, and the budget is never exceeded."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.act.caches.value_cache import Frequency, ValueCache
from ullage.ground.errors import SpecError

ENTRIES = st.tuples(st.integers(0, 12), st.integers(0, 60), st.floats(0, 100), st.booleans())


@given(st.integers(0, 100), st.integers(0, 5), st.lists(ENTRIES, max_size=80))
def test_the_budget_is_never_exceeded_and_the_counts_are_those_of_what_is_there(
    budget: int, each: int, steps: list[tuple[int, int, float, bool]]
) -> None:
    cache: ValueCache[int, int] = ValueCache(budget, entry_bytes=each)
    sizes: dict[int, int] = {}
    for key, nbytes, seconds, is_discarded in steps:
        if cache.put(key, nbytes, nbytes=nbytes, seconds=seconds):
            sizes[key] = nbytes + each
        if is_discarded:
            cache.discard(key)
        held = {name: size for name, size in sizes.items() if cache.get(name) is not None}
        counts = cache.counts
        assert counts.bytes == sum(held.values()) <= budget
        assert counts.entries == len(held)
        sizes = held


def test_what_saves_more_seconds_for_a_byte_stays() -> None:
    cache: ValueCache[str, str] = ValueCache(100)
    cache.put("slow", "x", nbytes=50, seconds=10.0)
    cache.put("fast", "x", nbytes=50, seconds=0.1)
    assert cache.put("new", "x", nbytes=50, seconds=5.0)
    assert (cache.get("slow"), cache.get("fast"), cache.get("new")) == ("x", None, "x")


def test_a_large_entry_of_little_worth_does_not_empty_the_cache() -> None:
    cache: ValueCache[int, str] = ValueCache(100)
    for key in range(10):
        cache.put(key, "x", nbytes=10, seconds=10.0)
    assert not cache.put(99, "x", nbytes=100, seconds=0.01)
    assert all(cache.get(key) for key in range(10))
    assert cache.counts.refused == 1


def test_what_was_popular_once_sinks_below_what_is_popular_now() -> None:
    cache: ValueCache[str, str] = ValueCache(2)
    cache.put("old", "x", nbytes=1, seconds=1.0)
    for _ in range(20):
        cache.get("old")
    for number in range(200):  # each is asked for twice, then never again
        for _ in range(2):
            if cache.get(f"{number}") is None:
                cache.put(f"{number}", "x", nbytes=1, seconds=1.0)
    assert cache.get("old") is None


def test_an_offered_value_replaces_the_older_one_even_where_it_does_not_fit() -> None:
    cache: ValueCache[str, str] = ValueCache(10)
    cache.put("key", "old", nbytes=5, seconds=1.0)
    assert not cache.put("key", "new", nbytes=11, seconds=1.0)
    assert cache.get("key") is None


def test_saved_seconds_are_those_of_hits() -> None:
    cache: ValueCache[str, str] = ValueCache(10)
    cache.put("key", "x", nbytes=5, seconds=1.5)
    cache.get("key"), cache.get("key"), cache.get("other")
    counts = cache.counts
    assert (counts.hits, counts.misses, counts.saved_s) == (2, 1, 3.0)


@pytest.mark.parametrize(("nbytes", "seconds"), [(-1, 1.0), (1, -1.0), (1, float("nan"))])
def test_sizes_and_seconds_below_zero_are_refused(nbytes: int, seconds: float) -> None:
    cache: ValueCache[str, str] = ValueCache(10)
    with pytest.raises(SpecError, match="at least 0"):
        cache.put("key", "x", nbytes=nbytes, seconds=seconds)
    with pytest.raises(SpecError, match="budget_bytes"):
        ValueCache(-1)


def test_threads_keep_within_the_budget() -> None:
    cache: ValueCache[int, int] = ValueCache(1000)
    most: list[int] = []

    def work(start: int) -> None:
        for number in range(2000):
            key = (start + number * 7) % 300
            if cache.get(key) is None:
                cache.put(key, key, nbytes=1 + key % 90, seconds=key)
            most.append(cache.counts.bytes)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) <= 1000


@given(st.lists(st.integers(0, 40), max_size=200))
def test_a_frequency_is_never_too_low_before_it_is_halved(keys: list[int]) -> None:
    frequency = Frequency(64)
    for key in keys:
        frequency.add(key)
    assert all(frequency.of(key) >= keys.count(key) for key in set(keys))


def test_frequencies_fade() -> None:
    frequency = Frequency(64)
    for _ in range(100):
        frequency.add("old")
    for number in range(600):
        frequency.add(number)
    assert frequency.of("old") < 100
