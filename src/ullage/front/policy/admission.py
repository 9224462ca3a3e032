"""Admits requests: keeps them in queues, starts those that fit, in a fair order, rejects the rest.

    admission = Admission([Engine(spec)], {"chat": TenantSpec()}, lengths=Lengths())
    admission.submit(request, now_s)        # None: it waits; else it was rejected
    for decision in admission.decide(now_s):
        ...                                 # Start or Reject
    admission.advance(request.id, generated, now_s)
    admission.finish(request.id, now_s)

Nothing is started that has to be preempted if predictions hold. Who has had the fewest byte-seconds
comes first. If that tenant's request does not fit, others may go ahead for `PATIENCE_S`; then the
engine that has the most room for it takes no others until it fits, so that large requests start.
A tenant that holds more than its share has no such claim, leaves room for the others (`Room`), and
has its prompts computed one after another in an engine (`Engine.takes_heavy`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from ullage.configuration.tables import Positive, Whole
from ullage.front.policy.engine_ledger import Engine, Running
from ullage.front.policy.lengths import Lengths
from ullage.front.policy.pool import Pool, add_engine
from ullage.front.policy.request import Decision, Reason, Reject, Request, Start
from ullage.front.policy.room import Room
from ullage.front.policy.routing import choose_engine
from ullage.front.policy.shares import Shares

PATIENCE_S: Final = 1.0
_LOOKAHEAD: Final = 8  # requests of a tenant that are tried where its first does not fit
_LONGEST_WAIT_S: Final = 120
_DOWN_WAIT_S: Final = 10
_DOWN_PATIENCE_S: Final = 10.0  # what waits that long while no engine takes it is answered
_EXPIRY_S: Final = 0.05  # deadlines are looked through no more often


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """A tenant's weight against others, and how many of its requests may wait."""

    weight: Positive = 1.0
    max_queue: Whole = 256


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a request runs, the bytes it was given, and the byte-seconds that were charged."""

    engine: Engine
    num_bytes: int
    charged: float


class Admission:
    """The queues of all tenants, and the engines behind them.

    Args:
        engines: that requests are sent to.
        tenants: who may send them.
        lengths: predicts answers.
        max_queue: requests of all tenants that may wait.
        spare_requests: of each other tenant, for which a tenant above its share leaves room; None:
            as many as that one usually has at once.
    """

    def __init__(
        self, engines: Sequence[Engine], tenants: Mapping[str, TenantSpec], lengths: Lengths,
        *, max_queue: int = 2048, spare_requests: int | None = None,
    ) -> None:  # fmt: skip
        self.engines = {engine.spec.name: engine for engine in engines}
        self.lengths = lengths
        weights = {name: tenant.weight for name, tenant in tenants.items()}
        self.shares = Shares(weights)
        self._make_room = partial(Room, weights, spare_requests)
        self._pools: dict[str, Pool] = {}
        for engine in engines:
            add_engine(self._pools, engine, self._make_room)
        self._tenants = dict(tenants)
        self._max_queue = max_queue
        self._queues: dict[str, deque[Request]] = {name: deque() for name in tenants}
        self._places: dict[int, _Place] = {}
        self.waiting: dict[int, float] = {}  # byte-seconds that each will take
        self._sizes: dict[int, int] = {}  # bytes that each was taken for when it came
        self._waiting_byte_seconds = 0.0
        self._expired_s = -math.inf

    def add(self, engine: Engine) -> None:
        """Takes one more engine."""
        self.engines[engine.spec.name] = engine
        add_engine(self._pools, engine, self._make_room)

    @property
    def num_waiting(self) -> Mapping[str, int]:
        """Requests that wait, by tenant."""
        return {name: len(queue) for name, queue in self._queues.items()}

    @property
    def num_running(self) -> int:
        """Requests in all engines."""
        return len(self._places)

    def submit(self, request: Request, now_s: float) -> Reject | None:
        """Takes a request into its tenant's queue; a Reject where it cannot wait there."""
        pool = self._pools.get(request.model)
        engines = () if pool is None else pool.engines
        reason = self._refuse(request, engines)
        if pool is None or reason is not None:
            reason = reason or Reason.NO_ENGINE
            never = reason is Reason.TOO_LARGE
            return Reject(request, reason, None if never else self.retry_after_s())
        self._queues[request.tenant].append(request)
        self.shares.enter(request.tenant)
        expected = self.lengths.predict(request.tenant, request.max_tokens)
        estimate = _byte_seconds(engines[0], request, expected, expected * engines[0].token_s)
        self._sizes[request.id] = engines[0].bytes_of(request, expected)
        pool.room.come(request.tenant, self._sizes[request.id], now_s)
        self.waiting[request.id] = estimate
        self._waiting_byte_seconds += estimate
        return None

    def decide(self, now_s: float) -> list[Decision]:
        """The next actions: requests to start, and those whose deadline cannot be met."""
        decisions: list[Decision] = [*self._expire(now_s)] if self.waiting else []
        blocked: set[str] = set()
        while self.waiting and (start := self._start_next(now_s, blocked)) is not None:
            decisions.append(start)
        return decisions

    def advance(self, number: int, generated: int, now_s: float) -> bool:
        """Takes how many tokens of each sequence a running request has by now; whether others may
        start that could not before.
        """
        return self._places[number].engine.advance(number, generated, now_s)

    def finish(self, number: int, now_s: float, *, is_whole: bool = True) -> Running:
        """A request has ended: its bytes are free, and its tenant pays for what was used.

        Args:
            number: of the request.
            now_s: when it ended.
            is_whole: whether it ended by itself; the length of another says nothing.
        """
        place = self._places.pop(number)
        running = place.engine.finish(number, now_s)
        request = running.request
        self._pools[request.model].room.take(request.tenant, -place.num_bytes)
        self._go(request, now_s)
        used = _byte_seconds(place.engine, request, running.generated, now_s - running.started_s)
        self.shares.settle(request.tenant, used, place.charged)
        self.shares.leave(request.tenant)
        if is_whole and running.generated:
            self.lengths.observe(request.tenant, running.generated)
        return running

    def withdraw(self, request: Request, now_s: float) -> None:
        """Takes a request that waits out of its queue."""
        self._queues[request.tenant].remove(request)
        self._go(request, now_s)
        self._waiting_byte_seconds -= self.waiting.pop(request.id)
        self.shares.leave(request.tenant)

    def is_served(self, model: str) -> bool:
        """True if an engine takes requests for a model now."""
        pool = self._pools.get(model)
        return pool is not None and bool(pool.up)

    def retry_after_s(self) -> int:
        """Seconds until all that waits now will have been served, from 1 to 120: the byte-seconds
        of the queues over the bytes of the engines.
        """
        total_bytes = sum(each.usable_bytes for each in self.engines.values() if each.is_open)
        if not total_bytes:
            return _DOWN_WAIT_S
        return max(1, min(_LONGEST_WAIT_S, math.ceil(self._waiting_byte_seconds / total_bytes)))

    def _go(self, request: Request, now_s: float) -> None:
        room = self._pools[request.model].room
        room.go(request.tenant, self._sizes.pop(request.id), now_s)

    def _refuse(self, request: Request, engines: Sequence[Engine]) -> Reason | None:
        if not any(engine.is_open for engine in engines):
            return Reason.NO_ENGINE
        if not any(engine.fits_alone(request) for engine in engines):
            return Reason.TOO_LARGE
        if len(self._queues[request.tenant]) >= self._tenants[request.tenant].max_queue:
            return Reason.TENANT_QUEUE
        if len(self.waiting) >= self._max_queue:
            return Reason.QUEUE
        return None

    def _expire(self, now_s: float) -> Iterable[Reject]:
        """Takes out the requests whose first token cannot come in time even from an idle engine,
        and those that wait for engines that are gone.
        """
        if now_s - self._expired_s < _EXPIRY_S:
            return
        self._expired_s = now_s
        for queue in self._queues.values():
            for request in [*queue]:
                reason = self._hopeless(request, now_s)
                if reason is not None:
                    self.withdraw(request, now_s)
                    yield Reject(request, reason, self.retry_after_s())

    def _hopeless(self, request: Request, now_s: float) -> Reason | None:
        has_waited = now_s - request.arrival_s > _DOWN_PATIENCE_S
        if has_waited and not self._pools[request.model].up:
            return Reason.NO_ENGINE
        return Reason.DEADLINE if self._is_late(request, now_s) else None

    def _is_late(self, request: Request, now_s: float) -> bool:
        if request.deadline_s is None:
            return False
        least_s = min(
            (
                engine.uncached_tokens(request) / engine.prefill_tokens_per_s
                for engine in self._pools[request.model].engines
            ),
            default=0.0,
        )
        return now_s + least_s > request.deadline_s

    def _start_next(self, now_s: float, blocked: set[str]) -> Start | None:
        """Starts one request; engines that are to be left to another are added to `blocked`."""
        for tenant in self.shares.order(name for name, queue in self._queues.items() if queue):
            queue = self._queues[tenant]
            for position, request in enumerate(queue):
                if position >= _LOOKAHEAD:
                    break
                expected = self.lengths.predict(tenant, request.max_tokens)
                pool = self._pools[request.model]
                free = [each for each in pool.up if each.spec.name not in blocked]
                size = free[0].bytes_of(request, expected) if free else 0
                spare = partial(pool.spare_bytes, tenant, size, now_s)
                engine = choose_engine(free, request, expected, now_s, spare)
                if engine is not None:
                    del queue[position]
                    return self._start(request, engine, expected, now_s)
                is_patient = position or blocked or now_s - request.arrival_s <= PATIENCE_S
                # Who has more than a share keeps nobody waiting.
                if free and not is_patient and not pool.is_above_share(tenant, size, now_s):
                    most = max(free, key=lambda each: each.usable_bytes - each.reserved_bytes)
                    blocked.add(most.spec.name)
        return None

    def _start(self, request: Request, engine: Engine, expected: int, now_s: float) -> Start:
        took_s = engine.first_token_s(request) + expected * engine.token_s
        charged = _byte_seconds(engine, request, expected, took_s)
        self.shares.charge(request.tenant, charged)
        num_bytes = engine.bytes_of(request, expected)
        pool = self._pools[request.model]
        is_heavy = pool.is_above_share(request.tenant, num_bytes, now_s)
        pool.room.take(request.tenant, num_bytes)
        self._places[request.id] = _Place(engine, num_bytes, charged)
        self._waiting_byte_seconds -= self.waiting.pop(request.id)
        engine.start(request, expected, now_s, is_heavy=is_heavy)
        return Start(request, engine.spec.name, expected)


def _byte_seconds(engine: Engine, request: Request, tokens: int, took_s: float) -> float:
    """Bytes times seconds of a request: its prompt all the time, its answer half of it, since it
    grows token by token.
    """
    footprint = engine.spec.footprint
    middle = request.prompt_tokens + request.sequences * tokens // 2
    return footprint.bytes_of(middle, request.sequences) * max(0.0, took_s)
