"""Tiers of a prefix cache: against an LRU cache that is played, and by hand."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from ullage.operate.serve.tiers import size_tiers
from ullage.operate.serve.traffic import Traffic


def traffic(blocks: list[list[int]]) -> Traffic:
    """A request a second with these blocks of 512 tokens."""
    arrivals = [float(number) for number in range(len(blocks))]
    prompts = [512 * len(row) + 1 for row in blocks]
    return Traffic.of("test", arrivals, prompts, [1] * len(blocks), blocks=blocks)


def play(blocks: list[list[int]], size: int) -> int:
    """How many blocks an LRU cache of so many blocks finds."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for row in blocks:
        for block in row:
            hits += block in cache
            cache[block] = None
            cache.move_to_end(block)
            while len(cache) > size:
                cache.popitem(last=False)
    return hits


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=20),
    st.integers(1, 12),
)
def test_the_distances_are_those_of_a_played_cache(blocks: list[list[int]], size: int) -> None:
    tiers = size_tiers(traffic(blocks), 1)
    hits = play(blocks, size)
    reuses = len(tiers.distances_bytes)
    assert round(tiers.found_frac(size * 512) * reuses) == hits
    assert play(blocks, 1000) == reuses == tiers.repeated_tokens // 512


def test_what_comes_again_must_be_kept_until_then() -> None:
    # 1 and 2 come again, 3 and 4 never: two blocks at least, and LRU keeps what lies between.
    tiers = size_tiers(traffic([[1, 2], [3], [4], [1, 2]]), 2)
    assert tiers.live_bytes == 2 * 512 * 2
    assert tiers.bytes_for(1.0) == 4 * 512 * 2
    assert tiers.distinct_bytes == 4 * 512 * 2 and tiers.reused_bytes == 2 * 512 * 2


def test_without_reuse_there_is_nothing_to_keep() -> None:
    tiers = size_tiers(traffic([[1], [2]]), 1)
    assert (tiers.live_bytes, tiers.bytes_for(0.9), tiers.ceiling_frac) == (0, 0, 0.0)
    assert tiers.found_frac(0) == 1.0
