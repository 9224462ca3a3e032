"""When each request of some traffic is sent to an engine, and with which tokens.

arrivals = Arrivals(traffic)
while (index := arrivals.take(now_s)) is not None:
    engine.add(str(index), make_prompt(traffic, index, engine.prompt_of, FIRST_TOKEN), ...)
"""

from __future__ import annotations

import heapq

from ullage.operate.serve.traffic import Traffic


class Arrivals:
    """The requests that are still to come.

    Attributes:
        num_sent: how many were taken.
        arrival_s: when each request arrives; in a closed loop, known once it was taken.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._is_closed = traffic.num_users is not None
        # When each user of a closed loop sends its next request: a heap.
        self._free_s = [0.0] * (traffic.num_users or 0)
        self.num_sent = 0
        self.arrival_s: list[float] = traffic.arrival_s.tolist()

    @property
    def is_over(self) -> bool:
        """True if all requests were taken."""
        return self.num_sent >= len(self._traffic)

    @property
    def next_s(self) -> float | None:
        """When the next request is sent; None: once a request before it has its answer, or all were
        sent.
        """
        if self.is_over:
            return None
        if not self._is_closed:
            return float(self.arrival_s[self.num_sent])
        return self._free_s[0] if self._free_s else None

    def take(self, now_s: float) -> int | None:
        """The number of the next request, if it has arrived."""
        if self.is_over:
            return None
        next_s = self.next_s
        if next_s is None or next_s > now_s:
            return None
        if self._is_closed:
            self.arrival_s[self.num_sent] = heapq.heappop(self._free_s)
        self.num_sent += 1
        return self.num_sent - 1

    def free_user(self, now_s: float) -> None:
        """The user of a request has its answer, and thinks before the next."""
        if self._is_closed:
            heapq.heappush(self._free_s, now_s + self._traffic.think_s)
