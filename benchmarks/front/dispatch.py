"""What sends requests to engines: the front, and what it is compared with.

Each has `arrive`, which may send or keep a request, `decide`, which sends those that were kept,
and is told of what engines do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from benchmarks.front.engine_model import BLOCK, EngineModel
from benchmarks.front.traffic import FIRST_TOKEN_S, TENANTS, Arrival
from ullage.operate.front.policy.admission import Admission, TenantSpec
from ullage.operate.front.policy.engine_ledger import Engine, EngineSpec
from ullage.operate.front.policy.lengths import Lengths
from ullage.operate.front.policy.request import Footprint, Request, Start

TOKEN_BYTES = 131_072  # Llama 3.1 8B: 2 x 32 layers x 8 heads x 128 x 2 bytes
Sent = tuple[Arrival, EngineModel]


class Dispatch(Protocol):
    """Decides which engine gets a request, and when."""

    def arrive(self, arrival: Arrival, now_s: float) -> None:
        """Takes a request."""

    def decide(self, now_s: float) -> Iterator[Sent]:
        """The requests that are sent now."""

    def advance(self, arrival: Arrival, generated: int, now_s: float) -> None:
        """Takes how many tokens a request has by now."""

    def finish(self, arrival: Arrival, now_s: float) -> None:
        """A request is complete."""

    def look(self) -> None:
        """Once a second, as metrics are read."""


class LeastRequests:
    """Each request goes at once to the engine that has the fewest."""

    def __init__(self, engines: Sequence[EngineModel]) -> None:
        self.engines = engines
        self.queue: deque[Arrival] = deque()

    def rank(self, engine: EngineModel) -> tuple[float, ...]:
        """The engine with the least gets the request."""
        return (engine.num_requests,)

    def arrive(self, arrival: Arrival, now_s: float) -> None:
        del now_s
        self.queue.append(arrival)

    def decide(self, now_s: float) -> Iterator[Sent]:
        del now_s
        while self.queue:
            yield self.queue.popleft(), min(self.engines, key=self.rank)

    def advance(self, arrival: Arrival, generated: int, now_s: float) -> None:
        pass

    def finish(self, arrival: Arrival, now_s: float) -> None:
        pass

    def look(self) -> None:
        pass


class CacheUsage(LeastRequests):
    """Each request goes at once to the engine whose cache is emptiest, seen without delay; among
    equally full ones to that where the fewest wait.
    """

    def rank(self, engine: EngineModel) -> tuple[float, ...]:
        return (round(engine.used_blocks / engine.num_blocks, 2), len(engine.waiting))


class TokenCounters(LeastRequests):
    """A virtual token counter for each tenant, the output counted twice (arXiv:2401.00588). Who has
    the least comes next, as soon as an engine's free blocks hold its prompt and nobody waits there.

    Args:
        engines: behind it.
        with_deadlines: whether it, too, drops a request that has waited too long.
    """

    def __init__(self, engines: Sequence[EngineModel], *, with_deadlines: bool = False) -> None:
        super().__init__(engines)
        self.queues: dict[str, deque[Arrival]] = {name: deque() for name in TENANTS}
        self.counters = dict.fromkeys(TENANTS, 0.0)
        self.seen: dict[int, int] = {}
        self.with_deadlines = with_deadlines

    def arrive(self, arrival: Arrival, now_s: float) -> None:
        del now_s
        queue = self.queues[arrival.tenant]
        others = [self.counters[name] for name, each in self.queues.items() if each]
        if not queue and others:
            self.counters[arrival.tenant] = max(self.counters[arrival.tenant], min(others))
        queue.append(arrival)

    def decide(self, now_s: float) -> Iterator[Sent]:
        while True:
            if self.with_deadlines:
                for name, each in self.queues.items():
                    while each and now_s - each[0].arrival_s > FIRST_TOKEN_S[name]:
                        each.popleft()
            waiting = [name for name, queue in self.queues.items() if queue]
            free = [engine for engine in self.engines if not engine.waiting]
            if not waiting or not free:
                return
            tenant = min(waiting, key=lambda name: self.counters[name])
            engine = max(free, key=lambda each: each.free_blocks)
            arrival = self.queues[tenant][0]
            if arrival.prompt_tokens // BLOCK + 2 > engine.free_blocks:
                return
            self.queues[tenant].popleft()
            self.counters[tenant] += arrival.prompt_tokens
            yield arrival, engine

    def advance(self, arrival: Arrival, generated: int, now_s: float) -> None:
        del now_s
        self.counters[arrival.tenant] += 2 * (generated - self.seen.get(arrival.id, 0))
        self.seen[arrival.id] = generated


class Front:
    """The policy of `ullage front`.

    Args:
        engines: behind it.
        scale: what each prediction of a length is multiplied by.
        quantile: of a tenant's answers; None: each request is given room for its `max_tokens`.
    """

    def __init__(
        self, engines: Sequence[EngineModel], *, scale: float = 1.0, quantile: float | None = 0.9
    ) -> None:
        self.models = {engine.name: engine for engine in engines}
        self.arrivals: dict[int, Arrival] = {}
        self.preemptions = dict.fromkeys(self.models, 0)
        self.admission = Admission(
            [
                Engine(
                    EngineSpec(
                        engine.name, ("model",), engine.num_blocks * BLOCK * TOKEN_BYTES,
                        Footprint(TOKEN_BYTES, BLOCK), is_bounded=quantile is None,
                    )
                )
                for engine in engines
            ],
            {name: TenantSpec() for name in TENANTS},
            Lengths(quantile, scale=scale),
        )  # fmt: skip

    def arrive(self, arrival: Arrival, now_s: float) -> None:
        request = Request(
            arrival.id, arrival.tenant, "model", arrival.prompt_tokens, arrival.max_tokens,
            arrival_s=now_s, deadline_s=arrival.arrival_s + FIRST_TOKEN_S[arrival.tenant],
            prefix=arrival.prefix,
        )  # fmt: skip
        if self.admission.submit(request, now_s) is None:
            self.arrivals[arrival.id] = arrival

    def decide(self, now_s: float) -> Iterator[Sent]:
        for decision in self.admission.decide(now_s):
            arrival = self.arrivals.pop(decision.request.id)
            if isinstance(decision, Start):
                yield arrival, self.models[decision.engine]

    def advance(self, arrival: Arrival, generated: int, now_s: float) -> None:
        self.admission.advance(arrival.id, generated, now_s)

    def finish(self, arrival: Arrival, now_s: float) -> None:
        self.admission.finish(arrival.id, now_s)

    def look(self) -> None:
        for name, model in self.models.items():
            count = model.num_preemptions - self.preemptions[name]
            self.preemptions[name] = model.num_preemptions
            self.admission.engines[name].note_preemptions(count)
