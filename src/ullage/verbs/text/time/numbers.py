"""Seconds, shares, rates and dollars for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

_UNITS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def format_seconds(seconds: float) -> str:
    """A duration with three digits: "0.412 s", "23.1 ms", "850 us"."""
    return format_interval((seconds,))


def format_interval(interval: Sequence[float]) -> str:
    """Seconds in one unit with one number of digits: "0.412 s (0.381 to 0.468)".

    interval: the lower bound, the likely value and the upper bound; or one value.
    """
    return format_as(interval, interval[len(interval) // 2])


def format_as(interval: Sequence[float] | float, other_s: float) -> str:
    """As `format_interval`, in the unit and with the digits that another number of seconds has:
    then the parts of a step can be compared at a glance.
    """
    # From 0.1 s on in seconds: people compare steps with seconds.
    scale, unit = next(
        ((scale, unit) for scale, unit in _UNITS if other_s >= 0.0999 * scale), _UNITS[-1]
    )
    digits = _num_digits(other_s / scale)
    values = [interval] if isinstance(interval, float | int) else interval
    texts = [f"{value / scale:,.{digits}f}" for value in values]
    likely = f"{texts[len(texts) // 2]} {unit}"
    return likely if texts[0] == texts[-1] else f"{likely} ({texts[0]} to {texts[-1]})"


def format_share(part: float, whole: float) -> str:
    """A part of a whole: "41 %"; less than half a percent is "<1 %"."""
    percent = 100 * part / whole if whole else 0.0
    return f"{percent:.0f} %" if percent >= 0.5 or part <= 0 else "<1 %"


def format_rate(per_s: float) -> str:
    """A number with three digits, and commas: "39,700", "3.25"."""
    if per_s <= 0:
        return "0"
    if per_s < 100:
        return f"{per_s:.{_num_digits(per_s)}f}"
    unit = 10 ** max(0, math.floor(math.log10(per_s)) - 2)
    return f"{round(per_s / unit) * unit:,}"


def format_dollars(dollars: Sequence[float]) -> str:
    """Amounts with three digits: "$0.175 (0.162 to 0.199)".

    dollars: the lower bound, the likely value and the upper bound; or one value.
    """
    digits = max(2, _num_digits(dollars[len(dollars) // 2]))
    texts = [f"{value:,.{digits}f}" for value in dollars]
    likely = f"${texts[len(texts) // 2]}"
    return likely if texts[0] == texts[-1] else f"{likely} ({texts[0]} to {texts[-1]})"


def _num_digits(value: float) -> int:
    """Digits after the point for three in all; of small numbers six at most."""
    if value <= 0:
        return 0
    return min(6, max(0, 2 - math.floor(math.log10(value))))
