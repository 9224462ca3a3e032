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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from ullage.ground.config.tables import Positive, Whole
from ullage.operate.front.policy.engine_ledger import Engine, Running
from ullage.operate.front.policy.lengths import Lengths
from ullage.operate.front.policy.request import Decision, Reason, Reject, Request, Start
from ullage.operate.front.policy.room import Room

# Which engine a request goes to, among those whose cache has room for it.

PRESSURE_TOKENS: Final = 2048
ADAPTER_TOKENS: Final = 512  # what it costs to load an adapter that does not run yet


def cost(engine: Engine, request: Request) -> float:
    """The cost of a request at an engine, in prompt tokens."""
    fullness = engine.reserved_bytes / max(1, engine.usable_bytes)
    load = 0 if engine.has_adapter(request) else ADAPTER_TOKENS
    computed = engine.pending_tokens + engine.uncached_tokens(request)
    return computed + load + PRESSURE_TOKENS * fullness


def choose_engine(
    engines: Iterable[Engine],
    request: Request,
    output_tokens: int,
    now_s: float,
    spare: Callable[[], Mapping[str, int] | None] = lambda: None,
) -> Engine | None:
    """The engine to which the request goes now; None: it waits.

    An engine that computes many prompts already gets no more of them: those that wait here can
    still be put in another order, those that wait there cannot.

    Args:
        engines: that take requests.
        request: to be sent.
        output_tokens: that are expected of each of its sequences.
        now_s: the time.
        spare: gives the bytes that the request has to leave free, by engine, and of others it may
            go to none; None: to any, and it leaves nothing. Where it fits none this is not asked.
    """
    possible = [
        engine
        for engine in engines
        if _is_prompt(engine, request, now_s) and engine.fits(request, output_tokens)
    ]
    if possible and (spare_bytes := spare()) is not None:
        possible = [
            engine
            for engine in possible
            if (left := spare_bytes.get(engine.spec.name)) is not None
            and engine.fits(request, output_tokens, left)
        ]
    return min(possible, key=lambda engine: cost(engine, request), default=None)


def _is_prompt(engine: Engine, request: Request, now_s: float) -> bool:
    """True if the engine would come to the request soon, and before its deadline."""
    if (
        request.deadline_s is not None
        and now_s + engine.first_token_s(request) > request.deadline_s
    ):
        return False
    ahead = engine.pending_tokens
    return not ahead or ahead + engine.uncached_tokens(request) <= engine.spec.prefill_in_flight


# The engines that can replace each other: those that serve the same models.


@dataclass(frozen=True, slots=True)
class Pool:
    """Engines, and what tenants hold in them together."""

    engines: tuple[Engine, ...]
    room: Room

    @property
    def up(self) -> list[Engine]:
        """The engines that take requests now."""
        return [engine for engine in self.engines if engine.is_open]

    def spare_bytes(self, tenant: str, num_bytes: int, now_s: float) -> dict[str, int] | None:
        """The bytes that the tenant's request leaves free in each engine that takes a long prompt
        now, so that others find room: all that it has to leave, less what is free in other engines
        in pieces of use. None for a tenant within its share: it goes anywhere, and leaves nothing.
        """
        if not self.is_above_share(tenant, num_bytes, now_s):
            return None
        up = self.up
        usable = [each.usable_bytes for each in up]
        needed, piece = self.room.left_for_others(tenant, num_bytes, sum(usable), now_s)
        free = [size - each.reserved_bytes for each, size in zip(up, usable, strict=True)]
        pieces = [room if room >= piece else 0 for room in free]
        missing = {
            each.spec.name: needed - (sum(pieces) - own)
            for each, own in zip(up, pieces, strict=True)
            if each.takes_heavy(tenant, now_s)
        }
        return {name: max(size, piece) if size > 0 else 0 for name, size in missing.items()}

    def is_above_share(self, tenant: str, num_bytes: int, now_s: float) -> bool:
        """True if the tenant would hold more than its share of the engines."""
        usable_bytes = sum(each.usable_bytes for each in self.up)
        return self.room.is_above_share(tenant, num_bytes, usable_bytes, now_s)


def add_engine(pools: dict[str, Pool], engine: Engine, make_room: Callable[[], Room]) -> None:
    """Adds an engine to the pools of its models; models that the same engines serve share one.

    Ignores: that pools of different models may have some engines in common; what a tenant holds
    there through one model is not seen through the other.
    """
    split: dict[int, Pool] = {}
    for model in engine.spec.models:
        pool = pools.get(model)
        members = () if pool is None else pool.engines
        # Models that were served by the same engines so far stay together if this one has all.
        key = id(pool)
        if key not in split:
            has_all = all(
                other in engine.spec.models for other, each in pools.items() if each is pool
            )
            room = pool.room if pool is not None and has_all else make_room()
            split[key] = Pool((*members, engine), room)
        pools[model] = split[key]


# Who is next: the tenant that has had the fewest byte-seconds of cache for its weight.


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
