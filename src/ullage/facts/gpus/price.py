"""The price of a GPU-hour."""

from __future__ import annotations

import math

from ullage.ground.errors import SpecError


def check_price(price: float | None) -> float | None:
    """The price of a GPU-hour in dollars; None: none is given.

    Raises:
        SpecError: it is not a price.
    """
    if price is not None and not 0 < price < math.inf:
        raise SpecError(f"price={price!r} is not a price; expected dollars per GPU-hour, as 2.5")
    return price
