"""Which of two steps is faster, where both were timed by the same clock.

    compare(step, other).order

The intervals of two runs of one program are wide for the same reasons: the runs share most of their
kernels, and the host that launches them. So they are compared at common costs: the lower bounds
with each other, the likely values, and the upper bounds. Where all three differences have one sign
the order is sure, also where the intervals overlap; but for small differences, as the two runs do
not share where their tensors lie.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from ullage.clock.step_time import Interval

# The clock knows a kernel's bytes by the allocator's blocks that its operands lie in, so that the
# same kernels take another time where tensors lie otherwise: with examples/gpt2 0.9 % under
# expandable segments, and 1.4 % where each operation is recorded. Less than this is no difference.
_LEAST: Final = 0.02


class Order(Enum):
    """How a step compares with another: surely faster, surely slower, or neither is sure."""

    FASTER = "faster"
    SLOWER = "slower"
    ALIKE = "about as fast"


class Comparison(NamedTuple):
    """The comparison of two steps.

    Attributes:
        order: whether the order is sure, and which it is.
        least, likely, most: by what share of the other it takes longer, at the costs at which the
            difference is least, at likely costs, and where it is most; negative: it takes less.
    """

    order: Order
    least: float
    likely: float
    most: float


def compare(step: Interval, other: Interval) -> Comparison:
    """Compares a step with another of the same program, GPU and clock."""
    # By what share of the other it takes longer; 0 where the other takes no time.
    shares = [mine / their - 1 if their else 0.0 for mine, their in zip(step, other, strict=True)]
    order = Order.ALIKE
    if min(shares) > _LEAST:
        order = Order.SLOWER
    elif max(shares) < -_LEAST:
        order = Order.FASTER
    return Comparison(order, min(shares), shares[1], max(shares))
