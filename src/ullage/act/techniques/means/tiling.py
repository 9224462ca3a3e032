"""Cuts a length into parts that are as even as possible."""

from __future__ import annotations

import itertools


def even_lengths(count: int, num_segments: int) -> tuple[int, ...]:
    """The lengths of `num_segments` parts of `count`, as even as possible."""
    cuts = [count * place // num_segments for place in range(num_segments + 1)]
    return tuple(end - start for start, end in itertools.pairwise(cuts))
