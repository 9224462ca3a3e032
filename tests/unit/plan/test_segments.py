"""Segments of chains: the optimum against all segmentations, and against the closed form."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from benchmarks.plans.closed_forms import checkpointed_peak, least_checkpointed_peak
from benchmarks.plans.least_peak import Chain, least_peak, peak_of
from hypothesis import given
from hypothesis import strategies as st

from ullage.act.techniques.checkpoint_segments import read_lengths
from ullage.act.techniques.means.tiling import even_lengths

SIZES = st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=1, max_size=9)


def all_lengths(count: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut a chain."""
    if not count:
        yield ()
    for first in range(1, count + 1):
        for rest in all_lengths(count - first):
            yield (first, *rest)


@given(SIZES, st.integers(0, 40))
def test_no_other_segmentation_takes_less(sizes: list[tuple[int, int, int]], outside: int) -> None:
    chain = Chain(*(np.array(one, dtype=np.int64) for one in zip(*sizes, strict=True)), outside)
    best = least_peak(chain)
    assert sum(best) == len(sizes)
    assert peak_of(best, chain) == min(peak_of(one, chain) for one in all_lengths(len(sizes)))


@pytest.mark.parametrize("count", [1, 2, 16, 64, 144])
def test_alike_modules_take_what_the_closed_forms_say(count: int) -> None:
    ones = np.ones(count, dtype=np.int64)
    chain = Chain(ones, ones, ones)
    assert peak_of(least_peak(chain), chain) == least_checkpointed_peak(count)
    for segments in range(1, count + 1):
        lengths = even_lengths(count, segments)
        # The last segment of even ones is among the longest, or one module shorter.
        said = checkpointed_peak(count, segments)
        assert peak_of(lengths, chain) in {said, said - 1}
        if count % segments == 0:
            assert peak_of(lengths, chain) == said


def test_lengths_are_read_and_checked() -> None:
    from ullage.ground.errors import PlanError

    assert read_lengths("4, 4,3", "blocks", 11) == (4, 4, 3)
    assert read_lengths("", "blocks", 16) == (4, 4, 4, 4)
    for wrong in ("4,4", "4,x,3", "0,11", "-1,12", "4;7"):
        with pytest.raises(PlanError, match="whose sum is 11"):
            read_lengths(wrong, "blocks", 11)
