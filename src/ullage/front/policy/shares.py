"""Who is next: the tenant that has had the fewest byte-seconds of cache for its weight.

    shares = Shares({"chat": 2.0, "batch": 1.0})
    shares.enter("chat"); shares.charge("chat", 4e9)
    shares.order(["chat", "batch"])     # ["batch", "chat"]

This is fair queueing as of a virtual token counter (Sheng et al. 2024, arXiv:2401.00588), where
what is counted is not tokens but what is scarce: bytes of cache times the seconds they are held. A
tenant that comes back after a pause begins at the least counter of those that are there, so that
nobody saves up shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class Shares:
    """The counters of all tenants."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = dict(weights)
        # Byte-seconds of each tenant, divided by its weight; lifted after pauses.
        self.counters = dict.fromkeys(self._weights, 0.0)
        self._active: dict[str, int] = {}
        self._expected = dict.fromkeys(self._weights, 0.0)  # part of the counters, not yet used

    def enter(self, tenant: str) -> None:
        """A request of the tenant comes; `leave` is called once it has ended."""
        if not self._active.get(tenant):
            # Without what is only expected of requests that run: where that was too much and is
            # given back, who came meanwhile would come last.
            others = [
                self.counters[name] - self._expected[name]
                for name, count in self._active.items()
                if count
            ]
            if others:
                self.counters[tenant] = max(self.counters[tenant], min(others))
        self._active[tenant] = self._active.get(tenant, 0) + 1

    def leave(self, tenant: str) -> None:
        """A request of the tenant has ended, or was rejected."""
        self._active[tenant] -= 1

    def charge(self, tenant: str, byte_seconds: float) -> None:
        """Adds what a request is expected to use."""
        share = byte_seconds / self._weights[tenant]
        self.counters[tenant] += share
        self._expected[tenant] += share

    def settle(self, tenant: str, used: float, charged: float) -> None:
        """Puts what a request has used in place of what was charged for it."""
        self.counters[tenant] += (used - charged) / self._weights[tenant]
        self._expected[tenant] -= charged / self._weights[tenant]

    def order(self, tenants: Iterable[str]) -> list[str]:
        """The tenants, the one that is next first."""
        return sorted(tenants, key=lambda tenant: self.counters[tenant])
