"""The HTTP server before an engine: one process that takes requests in and streams tokens out.

    server = HttpServer(traffic, host)
    while (index := server.take(now_s)) is not None:    # requests that have reached the engine
        ...
    server.stream(now_s, [Streamed(index, 1, is_last=False)])

It does one thing after the other, in the order in which they come. So requests that are sent at the
same moment reach the engine one by one, in different steps; and who streams many answers takes new
requests in later.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from ullage.operate.serve.arrivals import Arrivals
from ullage.operate.serve.host_time import HostTime
from ullage.operate.serve.traffic import Traffic


class Streamed(NamedTuple):
    """A request's part of a step: its number, how many tokens, whether they are the last."""

    request: int
    num_tokens: int
    is_last: bool


class HttpServer:
    """Requests on their way to the engine, and tokens on their way to the users.

    Attributes:
        arrivals: the requests that are still to be sent.
        first_s, end_s: when each request's first and last token reached its user; None: not yet.
    """

    def __init__(self, traffic: Traffic, host: HostTime) -> None:
        self.arrivals = Arrivals(traffic)
        self.first_s: list[float | None] = [None] * len(traffic)
        self.end_s: list[float | None] = [None] * len(traffic)
        self._prompt_tokens, self._host = traffic.prompt_tokens, host
        self._free_s = 0.0
        # Requests with the moment when they reach the engine, and tokens with that of their step.
        self._taken: deque[tuple[float, int]] = deque()
        self._tokens: deque[tuple[float, Sequence[Streamed]]] = deque()

    def take(self, now_s: float) -> int | None:
        """The number of the next request that has reached the engine by now."""
        self._work(now_s)
        if self._taken and self._taken[0][0] <= now_s:
            return self._taken.popleft()[1]
        return None

    def stream(self, now_s: float, tokens: Sequence[Streamed]) -> None:
        """A step has ended with these tokens. Moments never go back from call to call."""
        if tokens:
            self._tokens.append((now_s, tokens))

    def refuse(self, now_s: float) -> None:
        """The engine refuses a request; its user is free."""
        self.arrivals.free_user(now_s)

    @property
    def is_over(self) -> bool:
        """True if all requests were sent and taken, and nothing is to be streamed."""
        return self.arrivals.is_over and not self._taken and not self._tokens

    @property
    def next_s(self) -> float | None:
        """When there is something to do next; None: nothing before the engine gives tokens."""
        moments = [queue[0][0] for queue in (self._taken, self._tokens) if queue]
        sent_s = self.arrivals.next_s
        return min(moments if sent_s is None else [*moments, sent_s], default=None)

    def _work(self, until_s: float) -> None:
        """Does what has come by then, in the order in which it came; it may end later."""
        while True:
            step_s = self._tokens[0][0] if self._tokens else math.inf
            sent_s = self.arrivals.next_s
            if min(step_s, math.inf if sent_s is None else sent_s) > until_s:
                return
            if sent_s is None or step_s <= sent_s:
                self._stream(*self._tokens.popleft())
            else:
                self._receive(sent_s)

    def _receive(self, sent_s: float) -> None:
        index = self.arrivals.take(sent_s)
        if index is None:
            return
        tokens_s = self._host.prompt_token_s * int(self._prompt_tokens[index])
        self._free_s = max(self._free_s, sent_s) + self._host.http_s + tokens_s
        self._taken.append((self._free_s, index))

    def _stream(self, step_s: float, tokens: Sequence[Streamed]) -> None:
        self._free_s = max(self._free_s, step_s)
        for request, num_tokens, is_last in tokens:
            self._free_s += self._host.answer_token_s * num_tokens
            if num_tokens and self.first_s[request] is None:
                self.first_s[request] = self._free_s
            if is_last:
                self.end_s[request] = self._free_s
                self.arrivals.free_user(self._free_s)
