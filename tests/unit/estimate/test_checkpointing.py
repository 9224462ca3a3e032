"""Checkpointed chains, against brute force over short ones."""

from __future__ import annotations

import doctest
import itertools
from collections.abc import Iterator

import pytest
from benchmarks.plans import closed_forms
from hypothesis import given
from hypothesis import strategies as st
from tests.rows import each

from ullage.ground.errors import SpecError

SHORT = range(1, 13)
sizes = st.integers(1, 10**6)


def segmentations(num_layers: int, num_segments: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut a chain, as lengths."""
    for cuts in itertools.combinations(range(1, num_layers), num_segments - 1):
        edges = (0, *cuts, num_layers)
        yield tuple(end - start for start, end in itertools.pairwise(edges))


def replayed_peak(lengths: tuple[int, ...], *, lets_go: bool) -> int:
    """The most units held while a checkpointed chain is run back segment by segment."""
    checkpoints = peak = len(lengths)
    for length in reversed(lengths):
        peak = max(peak, checkpoints + length)
        checkpoints -= lets_go
    return peak


def test_the_examples_of_the_module_are_true() -> None:
    assert doctest.testmod(closed_forms) == (0, 1)


@each(("num_layers", "frees"), itertools.product(SHORT, [True, False]))
def test_the_peak_of_autograd_is_that_of_a_replay(num_layers: int, *, frees: bool) -> None:
    outputs, gradients, peak = num_layers, 1, 0
    for layer in range(num_layers, 0, -1):
        gradients += layer > 1  # the chain's input wants none
        peak = max(peak, outputs + gradients)
        if frees:
            outputs, gradients = outputs - 1, gradients - 1
    assert closed_forms.autograd_peak(num_layers, frees=frees) == peak


@each("num_layers", SHORT)
def test_even_segments_are_the_best_where_checkpoints_are_kept(num_layers: int) -> None:
    for num_segments in range(1, num_layers + 1):
        cuts = segmentations(num_layers, num_segments)
        least = min(replayed_peak(lengths, lets_go=False) for lengths in cuts)
        assert closed_forms.checkpointed_peak(num_layers, num_segments) == least


@each("num_layers", SHORT)
def test_no_segmentation_is_below_the_least_peak_with_checkpoints_let_go(num_layers: int) -> None:
    least = min(
        replayed_peak(lengths, lets_go=True)
        for num_segments in range(1, num_layers + 1)
        for lengths in segmentations(num_layers, num_segments)
    )
    assert closed_forms.least_checkpointed_peak(num_layers) == least


@given(sizes)
def test_the_square_root_is_the_least_of_all_counts(num_layers: int) -> None:
    num_segments = closed_forms.best_num_segments(min(num_layers, 5000))
    num_layers = min(num_layers, 5000)
    peaks = [closed_forms.checkpointed_peak(num_layers, k) for k in range(1, num_layers + 1)]
    assert closed_forms.sqrt_peak(num_layers) == min(peaks) == peaks[num_segments - 1]
    assert peaks.index(min(peaks)) == num_segments - 1


@given(sizes)
def test_the_square_root_bounds_hold(num_layers: int) -> None:
    even = closed_forms.sqrt_peak(num_layers)
    best = closed_forms.least_checkpointed_peak(num_layers)
    assert (even - 1) ** 2 < 4 * num_layers <= even**2
    assert best * (best - 1) // 2 >= num_layers > (best - 1) * (best - 2) // 2
    assert best <= even


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: closed_forms.autograd_peak(0), "num_layers=0 .* 1 or more"),
        (lambda: closed_forms.checkpointed_peak(3, 4), "num_segments=4 .* num_layers=3"),
    ],
)
def test_what_is_not_possible_is_said(wrong: object, says: str) -> None:
    assert callable(wrong)
    with pytest.raises(SpecError, match=says):
        wrong()
