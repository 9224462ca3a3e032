"""The cost of a step, by the price of a GPU-hour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from ullage.clock.step_time import Interval, StepTime
from ullage.ground.protocol.plain import As

_HOUR_S = 3600


class Dollars(NamedTuple):
    """An amount: the lower bound, the likely value, and the upper bound."""

    low: float
    likely: float
    high: float


@dataclass(frozen=True, slots=True)
class Expense:
    """The cost of training at a price.

    Attributes:
        gpu_hour: dollars for one GPU and one hour.
        num_gpus: of the job; each takes as long as the one that was timed.
        thousand_steps: dollars for 1,000 steps on all of them.
        million_tokens: dollars for 1,000,000 tokens, where each GPU has tokens of its own; None:
            the number of tokens is not known.
    """

    gpu_hour: Annotated[float, As("gpu_hour_dollars")]
    num_gpus: int
    thousand_steps: Annotated[Dollars, As("thousand_steps_dollars")]
    million_tokens: Annotated[Dollars | None, As("million_tokens_dollars")]


def find_expense(time: StepTime, gpu_hour: float, num_gpus: int) -> Expense:
    """Prices steps of that time on this many GPUs."""
    return price_steps(time.step, time.num_tokens, gpu_hour, num_gpus)


def price_steps(step: Interval, num_tokens: int, gpu_hour: float, num_gpus: int) -> Expense:
    """Prices steps on this many GPUs.

    Args:
        step: seconds of one.
        num_tokens: of a step on each GPU; 0: not known.
        gpu_hour: dollars.
        num_gpus: that work as long.
    """
    per_second = gpu_hour / _HOUR_S
    million_tokens = None
    if num_tokens:
        million_tokens = _scale(step, per_second * 1e6 / num_tokens)
    return Expense(gpu_hour, num_gpus, _scale(step, per_second * 1e3 * num_gpus), million_tokens)


def _scale(interval: Interval, dollars_per_second: float) -> Dollars:
    return Dollars(*(seconds * dollars_per_second for seconds in interval))
