"""Ways to cut a chain of modules into segments that are checkpointed, each as one.

While the backward pass makes a segment again, the inputs of the segments up to it are held, and
what its own modules keep. With k segments of L alike modules that is k + L/k units, least at the
root of L (Chen et al. 2016, arXiv:1604.06174); segments that shrink towards the end take less, and
modules that are not alike want other lengths still.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from ullage.trace.model import Int64Array


class Chain(NamedTuple):
    """What the modules of a chain take.

    Attributes:
        input_bytes: of each module's input.
        kept_bytes: what each keeps for its backward where nothing is checkpointed.
        rest_bytes: what is allocated at most during its own backward, less what modules before it
            hold: what it keeps itself is in that.
        outside_bytes: what is allocated at most while all inputs of segments are held, less these.
    """

    input_bytes: Int64Array
    kept_bytes: Int64Array
    rest_bytes: Int64Array
    outside_bytes: int = 0


def peak_of(lengths: Sequence[int], chain: Chain) -> int:
    """The most bytes that are held at once under segments of these lengths."""
    most = input_bytes = start = 0
    for length in lengths:
        input_bytes += int(chain.input_bytes[start])
        end = start + length
        before = 0
        for place in range(start, end):
            most = max(most, input_bytes + before + int(chain.rest_bytes[place]))
            before += int(chain.kept_bytes[place])
        start = end
    return max(most, input_bytes + chain.outside_bytes)


def least_peak(chain: Chain) -> tuple[int, ...]:
    """The lengths of the segments with the least peak_of, of all that there are.

    By bisection of the peak: for each, the least that can be held when a segment starts at a
    module tells whether the chain can be cut at all.
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
    """The lengths with which no more than `peak` is held; None: there are none."""
    count = len(chain.kept_bytes)
    inputs, kept_bytes, rest = (sizes.tolist() for sizes in chain[:3])
    # For each module: the least that is held before a segment starts there, and where that one's
    # predecessor starts.
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
