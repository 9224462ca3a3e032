"""Ways to cut a chain of modules into checkpointed segments.

While the backward pass recomputes a segment, the inputs of the segments up to it are live, and the
memory that its own modules keep. With k segments of L equal modules that is k + L/k units, with a
minimum at the square root of L (Chen et al. 2016, arXiv:1604.06174). Segments that shrink towards
the end take less, and unequal modules have other optimal lengths.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from ullage.log.model import Int64Array


class Chain(NamedTuple):
    """The memory of the modules of a chain.

    Attributes:
        input_bytes: of each module's input.
        kept_bytes: the memory that each keeps for its backward without checkpointing.
        rest_bytes: the peak during its own backward, less what the modules before it keep; its own
            kept memory is part of it.
        outside_bytes: the peak while all inputs of segments are live, less these inputs.
    """

    input_bytes: Int64Array
    kept_bytes: Int64Array
    rest_bytes: Int64Array
    outside_bytes: int = 0


def peak_of(lengths: Sequence[int], chain: Chain) -> int:
    """The peak under segments of these lengths."""
    most = live_bytes = start = 0
    for length in lengths:
        live_bytes += int(chain.input_bytes[start])
        end = start + length
        before = 0
        for place in range(start, end):
            most = max(most, live_bytes + before + int(chain.rest_bytes[place]))
            before += int(chain.kept_bytes[place])
        start = end
    return max(most, live_bytes + chain.outside_bytes)


def least_peak(chain: Chain) -> tuple[int, ...]:
    """The lengths of the segments with the least `peak_of`.

    By bisection of the peak. For each value, dynamic programming over the modules finds whether any
    segments stay below it.
    """
    count = len(chain.kept_bytes)
    best: tuple[int, ...] = (count,)
    low, high = 0, peak_of(best, chain)
    while low < high:
        middle = (low + high) // 2
        lengths = _within(middle, chain)
        if lengths is None:
            low = middle + 1
        else:
            best = lengths
            high = min(middle, peak_of(lengths, chain))
    return best


def _within(peak: int, chain: Chain) -> tuple[int, ...] | None:
    """Lengths whose peak is at most `peak`; None: there are none."""
    count = len(chain.kept_bytes)
    inputs, kept_bytes, rest = (sizes.tolist() for sizes in chain[:3])
    # For each module: the least live memory before a segment starts there, and the start of the
    # segment before it.
    least: list[float] = [0, *[float("inf")] * count]
    came_from = [0] * (count + 1)
    for start in range(count):
        with_own = least[start] + inputs[start]
        before = 0
        for place in range(start, count):
            if with_own + before + rest[place] > peak:
                break
            before += kept_bytes[place]
            if with_own < least[place + 1]:
                least[place + 1], came_from[place + 1] = with_own, start
    if least[count] + chain.outside_bytes > peak:
        return None
    cuts = [count]
    while cuts[-1]:
        cuts.append(came_from[cuts[-1]])
    return tuple(start - end for start, end in itertools.pairwise(cuts))[::-1]
