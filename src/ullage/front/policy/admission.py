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
With `spare_requests`, a tenant that holds more than its share of an engine has no such claim, and
leaves room there (`Room`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ullage.front.policy.engine_ledger import Engine, Running
from ullage.front.policy.lengths import Lengths
from ullage.front.policy.request import Decision, Reason, Reject, Request, Start
from ullage.front.policy.room import Room
from ullage.front.policy.routing import choose_engine
from ullage.front.policy.shares import Shares

__all__ = ["PATIENCE_S", "Admission", "TenantSpec"]

PATIENCE_S: Final = 1.0
_LOOKAHEAD: Final = 8  # requests of a tenant that are tried where its first does not fit
_LONGEST_WAIT_S: Final = 120
_DOWN_WAIT_S: Final = 10
_EXPIRY_S: Final = 0.05  # deadlines are looked through no more often


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """A tenant's weight against others, and how many of its requests may wait."""

    weight: float = 1.0
    max_queue: int = 256


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
        spare_requests: of other tenants, for which a tenant above its share leaves room.
    """

    def __init__(
        self, engines: Sequence[Engine], tenants: Mapping[str, TenantSpec], lengths: Lengths,
        *, max_queue: int = 2048, spare_requests: int = 0,
    ) -> None:  # fmt: skip
        self.engines = {engine.spec.name: engine for engine in engines}
        self.lengths = lengths
        weights = {name: tenant.weight for name, tenant in tenants.items()}
        self.shares = Shares(weights)
        self._room = Room(weights, spare_requests)
        self._tenants = dict(tenants)
        self._max_queue = max_queue
        self._queues: dict[str, deque[Request]] = {name: deque() for name in tenants}
        self._places: dict[int, _Place] = {}
        self._waiting: dict[int, float] = {}  # byte-seconds that each will take
        self._waiting_byte_seconds = 0.0
        self._expired_s = -math.inf

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
        engines = self._serving(request)
        reason = self._refuse(request, engines)
        if reason is not None:
            never = reason is Reason.TOO_LARGE
            return Reject(request, reason, None if never else self.retry_after_s())
        self._queues[request.tenant].append(request)
        self.shares.enter(request.tenant)
        expected = self.lengths.predict(request.tenant, request.max_tokens)
        estimate = _byte_seconds(engines[0], request, expected, expected * engines[0].token_s)
        self._room.come(request.tenant, engines[0].bytes_of(request, expected), now_s)
        self._waiting[request.id] = estimate
        self._waiting_byte_seconds += estimate
        return None

    def decide(self, now_s: float) -> list[Decision]:
        """What is to be done now: requests to start, and those whose deadline cannot be met."""
        decisions: list[Decision] = [*self._expire(now_s)]
        blocked: set[str] = set()
        while (start := self._start_next(now_s, blocked)) is not None:
            decisions.append(start)
        return decisions

    def advance(self, number: int, generated: int, now_s: float) -> None:
        """Takes how many tokens of each sequence a running request has by now."""
        self._places[number].engine.advance(number, generated, now_s)

    def finish(self, number: int, now_s: float, *, is_whole: bool = True) -> Running:
        """A request has ended: its bytes are free, and its tenant pays for what was used.

        Args:
            number: of the request.
            now_s: when it ended.
            is_whole: whether it ended by itself; the length of another says nothing.
        """
        place = self._places.pop(number)
        running = place.engine.finish(number, now_s)
        self._room.take(running.engine, running.request.tenant, -place.num_bytes)
        request = running.request
        used = _byte_seconds(place.engine, request, running.generated, now_s - running.started_s)
        self.shares.charge(request.tenant, used - place.charged)
        self.shares.leave(request.tenant)
        if is_whole and running.generated:
            self.lengths.observe(request.tenant, running.generated)
        return running

    def withdraw(self, request: Request) -> None:
        """Takes a request that waits out of its queue."""
        self._queues[request.tenant].remove(request)
        self._waiting_byte_seconds -= self._waiting.pop(request.id)
        self.shares.leave(request.tenant)

    def retry_after_s(self) -> int:
        """Seconds until all that waits now will have been served, from 1 to 120: the byte-seconds
        of the queues over the bytes of the engines.
        """
        total_bytes = sum(each.usable_bytes for each in self.engines.values() if each.is_up)
        if not total_bytes:
            return _DOWN_WAIT_S
        return max(1, min(_LONGEST_WAIT_S, math.ceil(self._waiting_byte_seconds / total_bytes)))

    def _serving(self, request: Request) -> list[Engine]:
        return [each for each in self.engines.values() if request.model in each.spec.models]

    def _refuse(self, request: Request, engines: Sequence[Engine]) -> Reason | None:
        """Why a request is not even queued."""
        up = [engine for engine in engines if engine.is_up]
        if not up:
            return Reason.NO_ENGINE
        if not any(engine.fits_alone(request) for engine in engines):
            return Reason.TOO_LARGE
        if len(self._queues[request.tenant]) >= self._tenants[request.tenant].max_queue:
            return Reason.TENANT_QUEUE
        if len(self._waiting) >= self._max_queue:
            return Reason.QUEUE
        return None

    def _expire(self, now_s: float) -> Iterable[Reject]:
        """Takes out the requests whose first token cannot come in time even from an idle
        engine.
        """
        if now_s - self._expired_s < _EXPIRY_S:
            return
        self._expired_s = now_s
        for queue in self._queues.values():
            for request in [each for each in queue if self._is_late(each, now_s)]:
                self.withdraw(request)
                yield Reject(request, Reason.DEADLINE, self.retry_after_s())

    def _is_late(self, request: Request, now_s: float) -> bool:
        if request.deadline_s is None:
            return False
        least_s = min(
            (
                engine.uncached_tokens(request) / engine.prefill_tokens_per_s
                for engine in self._serving(request)
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
                engines = [each for each in self._serving(request) if each.is_up]
                free = [each for each in engines if each.spec.name not in blocked]
                spared = [(each, self._spare(each, request, expected, now_s)) for each in free]
                engine = choose_engine(spared, request, expected, now_s)
                if engine is not None:
                    del queue[position]
                    return self._start(request, engine, expected, now_s)
                is_patient = position or blocked or now_s - request.arrival_s <= PATIENCE_S
                if spared and not is_patient:
                    emptiest, spare_bytes = max(spared, key=lambda pair: _room_left(pair[0]))
                    if not spare_bytes:  # who has more than a share keeps nobody waiting
                        blocked.add(emptiest.spec.name)
        return None

    def _spare(self, engine: Engine, request: Request, expected: int, now_s: float) -> int:
        num_bytes = engine.bytes_of(request, expected)
        name, usable_bytes = engine.spec.name, engine.usable_bytes
        return self._room.spare_bytes(name, request.tenant, num_bytes, usable_bytes, now_s)

    def _start(self, request: Request, engine: Engine, expected: int, now_s: float) -> Start:
        took_s = engine.first_token_s(request) + expected * engine.token_s
        charged = _byte_seconds(engine, request, expected, took_s)
        self.shares.charge(request.tenant, charged)
        num_bytes = engine.bytes_of(request, expected)
        self._room.take(engine.spec.name, request.tenant, num_bytes)
        self._places[request.id] = _Place(engine, num_bytes, charged)
        self._waiting_byte_seconds -= self._waiting.pop(request.id)
        engine.start(request, expected, now_s)
        return Start(request, engine.spec.name, expected)


def _room_left(engine: Engine) -> int:
    return engine.usable_bytes - engine.reserved_bytes


def _byte_seconds(engine: Engine, request: Request, tokens: int, took_s: float) -> float:
    """Bytes times seconds of a request: its prompt all the time, its answer half of it, since it
    grows token by token.
    """
    footprint = engine.spec.footprint
    middle = request.prompt_tokens + request.sequences * tokens // 2
    return footprint.bytes_of(middle, request.sequences) * max(0.0, took_s)
