"""Joins the policy to the requests that wait for it: each waits for a decision of its own.

    start = await board.place(request)      # raises Refusal
    board.advance(request.id, generated)
    board.finish(request.id, is_whole=True)

All of it is done in one event loop, so nothing is locked. Whatever is started is finished: by its
own handler, however that ends.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ullage.operate.doors.refusal import Refusal
from ullage.operate.front.policy.admission import Admission
from ullage.operate.front.policy.request import Decision, Reason, Reject, Request, Start

_STATUS: Final = {
    Reason.TOO_LARGE: 400,
    Reason.NO_ENGINE: 503,
    Reason.TENANT_QUEUE: 429,
    Reason.QUEUE: 503,
    Reason.DEADLINE: 503,
}


class Board:
    """The requests that wait.

    Args:
        admission: decides.
        clock: seconds.
    """

    def __init__(
        self, admission: Admission, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.admission = admission
        self.clock = clock
        self.outcomes: Counter[tuple[str, str]] = Counter()  # (tenant, what became of it)
        self.byte_seconds: Counter[str] = Counter()
        self._futures: dict[int, asyncio.Future[Decision]] = {}
        self._is_scheduled = False
        self.ids = itertools.count(1)  # numbers for requests

    async def place(self, request: Request) -> Start:
        """Waits until the request is to be sent.

        Raises:
            Refusal: it is rejected.
        """
        is_alone = not self.admission.waiting
        reject = self.admission.submit(request, self.clock())
        if reject is not None:
            raise _refuse(reject)
        future = self._futures[request.id] = asyncio.get_running_loop().create_future()
        if is_alone:
            self._decide()
        else:
            self.schedule()
        try:
            decision: Decision = await future
        except asyncio.CancelledError:
            self._forget(request, future)
            raise
        finally:
            self._futures.pop(request.id, None)
        if isinstance(decision, Reject):
            raise _refuse(decision)
        return decision

    def advance(self, number: int, generated: int) -> None:
        """Takes how many tokens of each sequence there are."""
        if self.admission.advance(number, generated, self.clock()):
            self.schedule()

    def finish(self, number: int, *, is_whole: bool) -> None:
        """Gives back what a request held."""
        now_s = self.clock()
        running = self.admission.finish(number, now_s, is_whole=is_whole)
        request = running.request
        engine = self.admission.engines.get(running.engine)
        if engine is not None:
            tokens = request.prompt_tokens + request.sequences * running.generated // 2
            size = engine.spec.footprint.bytes_of(tokens, request.sequences)
            self.byte_seconds[request.tenant] += int(size * (now_s - running.started_s))
        self.schedule()

    def set_up(self, name: str, *, is_up: bool) -> None:
        """Takes that an engine answers, or that it does not."""
        engine = self.admission.engines[name]
        if engine.is_up and not is_up:
            engine.go_down()
        elif is_up and not engine.is_up:
            engine.is_up = True
            self.schedule()

    async def look(self) -> None:
        """Looks for deadlines that have passed."""
        self._decide()

    def schedule(self) -> None:
        """Decides once for all that happens in one turn of the loop."""
        if not self._is_scheduled and self.admission.waiting:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._decide)

    def _decide(self) -> None:
        self._is_scheduled = False
        for decision in self.admission.decide(self.clock()):
            future = self._futures.get(decision.request.id)
            if future is not None and not future.done():
                future.set_result(decision)
            elif isinstance(decision, Start):  # its client has hung up in this very moment
                self.admission.finish(decision.request.id, self.clock(), is_whole=False)

    def _forget(self, request: Request, future: asyncio.Future[Decision]) -> None:
        """The client has hung up: it waits no more, or what was just started is given back."""
        if future.done() and not future.cancelled():
            if isinstance(future.result(), Start):
                self.finish(request.id, is_whole=False)
            return
        with suppress(ValueError):
            self.admission.withdraw(request, self.clock())


def _refuse(reject: Reject) -> Refusal:
    reason = reject.reason
    return Refusal(_STATUS[reason], reason.value, retry_after_s=reject.retry_after_s)
