"""Memory of a backward pass over a chain of equal layers, with and without checkpointing.

Counts and closed forms; a unit is the output of one layer.

    >>> best_num_segments(64), checkpointed_peak(64, 8)
    (8, 16)
"""

from __future__ import annotations

import math

from ullage.ground.errors import SpecError


def autograd_peak(num_layers: int, *, frees: bool = True) -> int:
    """The most units that the backward pass of a chain holds at once.

    Counts: each layer keeps its output for its own backward step, which takes the gradient of that
    output and makes one of its input; the chain's input wants none. As torch does it (`frees`), a
    step's output and gradient go when it is done: num_layers + 2 at the first step of two or more.
    A tape that keeps everything (retain_graph, retained gradients) ends with an output and a
    gradient for each layer.
    Ignores: the input, parameters and their gradients, layers that keep more or less than their
    output.
    Error: none for such a chain: benchmarks/folklore/chain.py.
    Source: Griewank and Walther 2008, Evaluating Derivatives, 2nd ed., chapter 3.
    """
    _require_positive(num_layers=num_layers)
    return min(num_layers + 2, 2 * num_layers) if frees else 2 * num_layers


def checkpointed_peak(num_layers: int, num_segments: int) -> int:
    """The most units kept where a chain is checkpointed in segments as even as can be.

    Counts: the input of each segment, and one segment's outputs, which backward makes again:
    num_segments + ceil(num_layers / num_segments).
    Ignores: gradients (2 more, as in autograd_peak), and that the backward pass frees checkpoints,
    which gains nothing with even segments (see least_checkpointed_peak).
    Error: none beside these.
    Source: Chen et al. 2016, arXiv:1604.06174, section 4.1.
    """
    _require_segments(num_layers, num_segments)
    return num_segments + -(-num_layers // num_segments)


def best_num_segments(num_layers: int) -> int:
    """The fewest segments with the least checkpointed_peak, which is ceil(2 sqrt(num_layers)).

    Counts: as checkpointed_peak; about sqrt(num_layers).
    Ignores: layers that keep far more inside than they give, such as the blocks of a transformer:
    each of them as a segment is best then, as it is the count of segments that is cheap.
    Error: none for a chain of alike layers.
    Source: Chen et al. 2016, arXiv:1604.06174, section 4.1: O(sqrt n) for one more forward pass.
    """
    _require_positive(num_layers=num_layers)
    least = sqrt_peak(num_layers)
    return next(k for k in range(1, num_layers + 1) if checkpointed_peak(num_layers, k) == least)


def sqrt_peak(num_layers: int) -> int:
    """The least checkpointed_peak of all counts of segments: ceil(2 sqrt(num_layers)) units.

    Counts: as checkpointed_peak. Ignores: the same. Error: none.
    Source: k + L/k is least at k = sqrt(L); Chen et al. 2016, arXiv:1604.06174, section 4.1.
    """
    _require_positive(num_layers=num_layers)
    return 1 + math.isqrt(4 * num_layers - 1)


def least_checkpointed_peak(num_layers: int) -> int:
    """The least peak of one level of checkpoints with segments of any lengths, in units.

    Counts: while the i-th segment from the front is made again, only the i checkpoints up to it are
    left. So segments may shrink towards the end, and p units serve a chain of up to p (p - 1) / 2:
    about sqrt(2 num_layers) + 1/2, a factor of sqrt(2) below even segments. torch frees
    checkpoints like that; no library's default has such segments.
    Ignores: gradients. Error: none.
    Source: derived here; checked against all segmentations of short chains.
    """
    _require_positive(num_layers=num_layers)
    return (3 + math.isqrt(8 * num_layers - 7)) // 2


def _require_segments(num_layers: int, num_segments: int) -> None:
    _require_positive(num_layers=num_layers, num_segments=num_segments)
    if num_segments > num_layers:
        raise SpecError(
            f"num_segments={num_segments} is more than num_layers={num_layers}; use at most as many"
        )


def _require_positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise SpecError(f"{name}={size!r} is not possible; use 1 or more")
