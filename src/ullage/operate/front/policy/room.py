"""How much room a tenant has to leave for others, who may come any moment.

Nobody is stopped once he has started. So a hog that fills all caches while nobody else waits makes
the next light request wait until one of its own ends. Therefore a tenant that holds more than its
share leaves room for the others that came lately: as much as these have wanted at once in the last
minutes, together (the mean and two standard deviations) and each one request, within their shares.
That is max-min fairness with a margin: what the light ones do not want is the hog's.

    room = Room({"chat": 1.0, "hog": 1.0})
    room.come("chat", 300, now_s)
    room.left_for_others("hog", 900, usable_bytes=1000, now_s=now_s)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Final

RECENT_S: Final = 300.0
"""Seconds after its last request in which room is left for a tenant."""

_MEMORY_S: Final = 60.0  # what was wanted so long ago counts 1/e
_DEVIATIONS: Final = 2.0
_SMOOTHING: Final = 0.1


class _Demand:
    """The demand of a tenant: bytes of its requests that run or wait, over time."""

    def __init__(self, typical_bytes: float, now_s: float) -> None:
        self.typical_bytes = typical_bytes  # of a request
        self.came_s = self.changed_s = now_s
        self.wanted_bytes = 0
        self.mean = self.mean_square = 0.0

    def change(self, num_bytes: int, now_s: float) -> None:
        """It wants this much more from now on."""
        weight = -math.expm1(-max(0.0, now_s - self.changed_s) / _MEMORY_S)
        self.mean += weight * (self.wanted_bytes - self.mean)
        self.mean_square += weight * (float(self.wanted_bytes) ** 2 - self.mean_square)
        self.changed_s = now_s
        self.wanted_bytes += num_bytes

    @property
    def variance(self) -> float:
        """The variance of its demand over time."""
        return max(0.0, self.mean_square - self.mean**2)


class Room:
    """The room of tenants in engines that can replace each other, and their usual demand.

    Args:
        weights: of the tenants.
        spare_requests: of each other tenant, for which room is left; 0: none is; None: as many as
            its last minutes say.
    """

    def __init__(self, weights: Mapping[str, float], spare_requests: int | None = None) -> None:
        self._weights = dict(weights)
        self._spare_requests = spare_requests
        self._held: Counter[str] = Counter()
        self._demands: dict[str, _Demand] = {}

    def come(self, tenant: str, num_bytes: int, now_s: float) -> None:
        """A request of this many bytes comes."""
        demand = self._demands.get(tenant)
        if demand is None:
            demand = self._demands[tenant] = _Demand(float(num_bytes), now_s)
        demand.typical_bytes += _SMOOTHING * (num_bytes - demand.typical_bytes)
        demand.came_s = now_s
        demand.change(num_bytes, now_s)

    def go(self, tenant: str, num_bytes: int, now_s: float) -> None:
        """A request that came has ended, or waits no more."""
        self._demands[tenant].change(-num_bytes, now_s)

    def take(self, tenant: str, num_bytes: int) -> None:
        """A request starts; with a negative number, it ends."""
        self._held[tenant] += num_bytes

    def left_for_others(
        self, tenant: str, num_bytes: int, usable_bytes: int, now_s: float
    ) -> tuple[int, int]:
        """The bytes that the tenant has to leave free if it starts a request.

        Args:
            tenant: that would start.
            num_bytes: of the request.
            usable_bytes: of all engines together.
            now_s: the time.

        Returns:
            The bytes in all, and the least size of a piece of use; (0, 0) for a tenant within its
            share.
        """
        if not self.is_above_share(tenant, num_bytes, usable_bytes, now_s):
            return 0, 0
        others = self._others(tenant, now_s)
        whole = self._whole(tenant, others)
        shares = {name: usable_bytes * self._weights[name] / whole for name in others}
        least = {
            name: self._least_bytes(demand, shares[name], self._held[name])
            for name, demand in others.items()
        }
        total = max(sum(least.values()), self._usual_bytes(others, shares, now_s))
        pieces = (min(shares[name], demand.typical_bytes) for name, demand in others.items())
        return int(total), int(min(total, max(pieces, default=0.0)))

    def _least_bytes(self, demand: _Demand, share: float, held_bytes: int) -> float:
        """Room for one request of a tenant, or for as many more as was said; within its share."""
        if self._spare_requests is None:
            return max(0.0, min(demand.typical_bytes, share) - held_bytes)
        return max(0.0, min(self._spare_requests * demand.typical_bytes, share - held_bytes))

    def _usual_bytes(
        self, others: Mapping[str, _Demand], shares: Mapping[str, float], now_s: float
    ) -> float:
        """The bytes that the others usually want at once within their shares, besides what they
        hold: the sum of their means and two standard deviations of that sum, as if they came
        independently of each other.

        What lies between 0 and a share s, with a mean m, varies by no more than m (s - m) (Bhatia
        and Davis 2000). So a tenant that wants more than its share all the time adds nothing to the
        spread, however much that varies: for what is above its share no room is left anyway.
        """
        if self._spare_requests is not None:
            return 0.0
        usual = variance = held_bytes = 0.0
        for name, demand in others.items():
            demand.change(0, now_s)
            share = shares[name]
            mean = min(share, demand.mean)
            usual += mean
            variance += min(demand.variance, mean * (share - mean))
            held_bytes += min(share, self._held[name])
        return min(usual + _DEVIATIONS * math.sqrt(variance), sum(shares.values())) - held_bytes

    def is_above_share(self, tenant: str, num_bytes: int, usable_bytes: int, now_s: float) -> bool:
        """True if a tenant would hold more than its share with this many bytes more. One that holds
        nothing never does: a large request starves else.
        """
        held_bytes = self._held[tenant]
        whole = self._whole(tenant, self._others(tenant, now_s))
        share = usable_bytes * self._weights[tenant] / whole
        return bool(held_bytes) and held_bytes + num_bytes > share

    def _others(self, tenant: str, now_s: float) -> dict[str, _Demand]:
        return {
            name: demand
            for name, demand in self._demands.items()
            if name != tenant and now_s - demand.came_s < RECENT_S
        }

    def _whole(self, tenant: str, others: Mapping[str, _Demand]) -> float:
        return self._weights[tenant] + sum(self._weights[name] for name in others)
