"""How much room a tenant has to leave for others, who may come any moment.

Nobody is stopped once he has started. So a hog that fills a cache while nobody else waits makes the
next light request wait until one of its own ends. With `spare_requests`, a tenant that holds more
than its share of an engine leaves room there for so many requests of each other tenant that came
lately, as large as that one's are on average, within that one's share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

__all__ = ["RECENT_S", "Room"]

RECENT_S: Final = 60.0
_SMOOTHING: Final = 0.1


class Room:
    """What tenants hold in engines, and how large their requests are.

    Args:
        weights: of the tenants.
        spare_requests: of each other tenant, for which room is left; 0: none is.
    """

    def __init__(self, weights: Mapping[str, float], spare_requests: int = 0) -> None:
        self._weights = dict(weights)
        self._spare_requests = spare_requests
        self._bytes: Counter[tuple[str, str]] = Counter()  # (engine, tenant)
        self._typical: dict[str, float] = {}
        self._came_s: dict[str, float] = {}

    def come(self, tenant: str, num_bytes: int, now_s: float) -> None:
        """A request of so many bytes comes."""
        before = self._typical.get(tenant, float(num_bytes))
        self._typical[tenant] = before + _SMOOTHING * (num_bytes - before)
        self._came_s[tenant] = now_s

    def take(self, engine: str, tenant: str, num_bytes: int) -> None:
        """A request starts; with a negative number, it ends."""
        self._bytes[engine, tenant] += num_bytes

    def spare_bytes(
        self, engine: str, tenant: str, num_bytes: int, usable_bytes: int, now_s: float
    ) -> int:
        """What the tenant has to leave free in an engine if it starts so many bytes more there."""
        others = [
            name
            for name, came_s in self._came_s.items()
            if name != tenant and now_s - came_s < RECENT_S
        ]
        whole = self._weights[tenant] + sum(self._weights[name] for name in others)
        taken = self._bytes[engine, tenant]
        # A tenant that holds nothing there starts whatever fits: a large request starves else.
        if not taken or taken + num_bytes <= usable_bytes * self._weights[tenant] / whole:
            return 0
        spare = 0.0
        for name in others:
            share = usable_bytes * self._weights[name] / whole - self._bytes[engine, name]
            spare += max(0.0, min(self._spare_requests * self._typical[name], share))
        return int(spare)
