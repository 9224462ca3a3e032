"""The front's knowledge of an engine: its cache, what runs there, and how full that gets.

    engine = Engine(EngineSpec("a", ("llama",), cache_bytes=8 * GIB, footprint=Footprint(131072)))
    engine.fits(request, output_tokens=200)
    engine.start(request, 200, now_s=0.0)

All requests of an engine write one token a step. So those that run hold most either now or right
before one of them ends, and a request fits if it does at each of these moments (Gong et al. 2025,
arXiv:2507.10150, call this the future memory of a batch). An answer that becomes longer than
predicted is predicted anew, half as long again.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Final

from ullage.ground.config.tables import Count, Positive, Size, Words
from ullage.ground.protocol.plain import As, Example, From, Mark
from ullage.operate.front.policy.request import PREFIX_TOKENS, Footprint, Request, TokenKeys

# Which beginnings of prompts an engine has likely in its cache: those sent there last.


class Prefixes:
    """The prefixes that were sent to an engine, the least recently used forgotten first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = max(1, capacity)
        self._hashes: OrderedDict[int, None] = OrderedDict()

    def count(self, prefix: Sequence[int]) -> int:
        """The number of hashes that are known, from the beginning on."""
        for number, value in enumerate(prefix):
            if value not in self._hashes:
                return number
        return len(prefix)

    def add(self, prefix: Sequence[int]) -> None:
        """Takes the prefix of a prompt that is sent."""
        # The end of a prompt is forgotten before its beginning, as an engine's cache does.
        for value in reversed(prefix):
            self._hashes[value] = None
            self._hashes.move_to_end(value)
        while len(self._hashes) > self._capacity:
            self._hashes.popitem(last=False)

    def clear(self) -> None:
        """Forgets all, as an engine that was started again has."""
        self._hashes.clear()


_LONGER: Final = 1.5
_MORE_TOKENS: Final = 16
_SMOOTHING: Final = 0.1
_FEWEST_TOKENS: Final = 256  # less of a prompt says nothing about the engine's rate
_PREEMPTED: Final = 1.25  # what a preemption multiplies the margin by
_CALMED: Final = 0.99  # and each look without one
_MAX_MARGIN: Final = 0.5
_STALE: Final = 0.5  # share of the cache that is used while its state is unknown


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """The properties of an engine that are known beforehand.

    Attributes:
        name: in reports.
        models: that it serves.
        cache_bytes: of its KV cache, all ranks together.
        footprint: what tokens take there.
        max_requests: that it runs at once.
        margin_frac: share of the cache that is left free for what was predicted too short.
        prefill_tokens_per_s: prompt tokens; corrected by what is seen.
        token_s: seconds for a token of an answer; corrected likewise.
        prefill_in_flight: prompt tokens that may wait in the engine; more wait in the front, where
            their order can still change.
        is_bounded: whether all requests fit even if each reaches its bound at the same moment.
        adapters: names of the models that are adapters (LoRA) of another.
        adapter_slots: different adapters that it runs at once; None: any.
        adapter_bytes: of its cache that an adapter takes while it runs; 0 where the engine has set
            memory aside for its slots.
    """

    name: Annotated[str, Mark.NAME]
    models: Annotated[Words, Example('["llama-3.1-8b"]')]
    cache_bytes: Annotated[Size, As("cache"), Example('"40GiB"')]
    footprint: Annotated[Footprint, Mark.FLAT, From(TokenKeys), TokenKeys.footprint]
    max_requests: Count = 256
    margin_frac: Annotated[float, Mark.NO_KEY] = 0.05
    prefill_tokens_per_s: Positive = 4000.0
    token_s: Positive = 0.03
    prefill_in_flight: Count = 8192
    is_bounded: Annotated[bool, Mark.NO_KEY] = False
    adapters: Words = ()
    adapter_slots: Count | None = None
    adapter_bytes: Annotated[Size, As("adapter_cache")] = 0


@dataclass(frozen=True, slots=True)
class Running:
    """A request in an engine.

    Attributes:
        request: what it is.
        engine: the engine's name.
        output_tokens: expected of each sequence.
        started_s: when it was sent.
        uncached_tokens: of the prompt, that the engine likely has to compute.
        ahead_tokens: prompt tokens that the engine had to compute before.
        generated: tokens of each sequence so far.
        first_s: when the first token came; None: it has not.
    """

    request: Request
    engine: str
    output_tokens: int
    started_s: float
    uncached_tokens: int
    ahead_tokens: int
    generated: int = 0
    first_s: float | None = None


class Budget:
    """Bytes that the caches of several engines share, as of models on one GPU.

    Args:
        total_bytes: of all of them together.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.engines: list[Engine] = []  # that take of it

    def left_bytes(self, engine: Engine) -> int:
        """The bytes that an engine may hold, given what is promised in the others."""
        return self.total_bytes - sum(
            each.reserved_bytes + each.foreign_bytes for each in self.engines if each is not engine
        )


class Engine:
    """An engine's ledger.

    Args:
        spec: what it is.
        budget: that it shares with other engines; None: its cache is its own.
    """

    def __init__(self, spec: EngineSpec, budget: Budget | None = None) -> None:
        self.spec = spec
        self._budget = budget
        if budget is not None:
            budget.engines.append(self)
        self._adapters: Counter[str] = Counter()  # requests that run, by adapter
        self.is_up = True
        self.is_draining = False  # what runs there ends, and nothing is started
        self.is_stale = False
        self.foreign_bytes = 0  # what others hold there, who do not go through this front
        self.margin_frac = spec.margin_frac
        self.prefill_tokens_per_s = spec.prefill_tokens_per_s
        self.token_s = spec.token_s
        self.running: dict[int, Running] = {}
        self.reserved_bytes = 0  # were all to reach what is expected at the same moment
        self.pending_tokens = 0  # of prompts without a first token
        self._tokens_now = 0  # that are certainly there, or will be in a moment
        # Of tenants that held more than their share: the request whose prompt is computed, and
        # until when others that run have the engine's time.
        self._heavy_computed: int | None = None
        self._heavy_rest_s = 0.0
        self._prefixes = Prefixes(
            spec.cache_bytes // max(1, spec.footprint.token_bytes) // PREFIX_TOKENS
        )

    @property
    def is_open(self) -> bool:
        """True if it takes requests."""
        return self.is_up and not self.is_draining

    @property
    def bytes_now(self) -> int:
        """The bytes that the requests of this front hold."""
        return sum(_bytes_now(self.spec, each) for each in self.running.values())

    @property
    def usable_bytes(self) -> int:
        """The bytes that the requests of this front may hold together."""
        share = 1.0 - self.margin_frac
        if self.is_stale:
            share = min(share, _STALE)
        usable = int(self.spec.cache_bytes * share) - self.foreign_bytes
        usable -= len(self._adapters) * self.spec.adapter_bytes
        if self._budget is not None:
            usable = min(usable, int(self._budget.left_bytes(self) * share))
        return max(0, usable)

    def has_adapter(self, request: Request) -> bool:
        """True if nothing has to be loaded for the request: its model is not an adapter, or one
        that runs.
        """
        return request.model not in self.spec.adapters or request.model in self._adapters

    def uncached_tokens(self, request: Request) -> int:
        """Tokens of a prompt that the engine likely has to compute: at least one."""
        return max(1, request.prompt_tokens - PREFIX_TOKENS * self._prefixes.count(request.prefix))

    def fits_alone(self, request: Request) -> bool:
        """True if the whole request, up to its bound, ever fits this engine's cache."""
        whole = _bytes_of(self.spec, request, request.max_tokens)
        if request.model in self.spec.adapters:
            whole += self.spec.adapter_bytes
        most = self.spec.cache_bytes
        if self._budget is not None:
            most = min(most, self._budget.total_bytes)
        return whole <= most * (1.0 - self.spec.margin_frac)

    def fits(self, request: Request, output_tokens: int, spare_bytes: int = 0) -> bool:
        """True if the request fits now and until it ends, with all that run, and this many bytes
        are left free.
        """
        if len(self.running) >= self.spec.max_requests or not self._has_slot(request):
            return False
        needed = _bytes_of(self.spec, request, output_tokens)
        usable = self.usable_bytes - spare_bytes
        if not self.has_adapter(request):
            usable -= self.spec.adapter_bytes
        if self.reserved_bytes + needed <= usable:
            return True
        least_tokens = self._tokens_now + request.prompt_tokens
        is_hopeless = least_tokens * self.spec.footprint.token_bytes > usable
        if self.spec.is_bounded or is_hopeless or needed > usable:
            return False
        return self.peak_bytes((request, output_tokens)) <= usable

    def peak_bytes(self, candidate: tuple[Request, int] | None = None) -> int:
        """The most that those that run will hold, with one more where it is given.

        Of requests by their remaining steps, the longest first: before the step at which the k-th
        ends, the first k still run, and each has grown by this many tokens.
        Ignores: that a request grows only once its prompt was computed.
        """
        rows = [_row(self.spec, each) for each in self.running.values()]
        if candidate is not None:
            request, expected = candidate
            rows.append(_row(self.spec, Running(request, "", expected, 0.0, 0, 0)))
        rows.sort(reverse=True)
        bytes_now = accumulate(row[1] for row in rows)
        growths = accumulate(row[2] for row in rows)
        moments = zip(rows, bytes_now, growths, strict=True)
        return max((now + row[0] * growth for row, now, growth in moments), default=0)

    def first_token_s(self, request: Request) -> float:
        """Seconds until the first token were the request sent now."""
        return (self.pending_tokens + self.uncached_tokens(request)) / self.prefill_tokens_per_s

    def bytes_of(self, request: Request, output_tokens: int) -> int:
        """The bytes that the request holds right before it ends."""
        return _bytes_of(self.spec, request, output_tokens)

    def takes_heavy(self, tenant: str, now_s: float) -> bool:
        """True if a prompt of a tenant that holds more than its share may be sent now.

        A step computes prompts beside a token of each that runs, and takes as long as both. So such
        prompts are computed one after another, and while requests of other tenants run there they
        have half of the engine's time at most.
        """
        if self._heavy_computed is not None:
            return False
        return now_s >= self._heavy_rest_s or all(
            each.request.tenant == tenant for each in self.running.values()
        )

    def start(
        self, request: Request, output_tokens: int, now_s: float, *, is_heavy: bool = False
    ) -> None:
        """Takes a request that is sent; `is_heavy` of a tenant that holds more than its share."""
        if is_heavy and request.is_streamed:  # of others it is not seen when that was computed
            self._heavy_computed = request.id
        uncached = self.uncached_tokens(request)
        self.running[request.id] = Running(
            request, self.spec.name, output_tokens, now_s, uncached, self.pending_tokens
        )
        self.reserved_bytes += _bytes_of(self.spec, request, output_tokens)
        self.pending_tokens += uncached
        self._tokens_now += request.prompt_tokens
        if request.model in self.spec.adapters:
            self._adapters[request.model] += 1
        self._prefixes.add(request.prefix)

    def advance(self, number: int, generated: int, now_s: float) -> bool:
        """Takes how many tokens of each sequence there are by now; whether the prompt of a tenant
        that holds more than its share was computed with that.
        """
        running = self.running[number]
        expected = running.output_tokens
        if expected <= generated and expected < running.request.max_tokens:
            longer = math.ceil(generated * _LONGER) + _MORE_TOKENS
            expected = max(expected, min(running.request.max_tokens, longer))
            self.reserved_bytes += _bytes_of(self.spec, running.request, expected)
            self.reserved_bytes -= _bytes_of(self.spec, running.request, running.output_tokens)
        self._tokens_now += running.request.sequences * (generated - running.generated)
        first_s = running.first_s
        if first_s is None and generated > 0:
            first_s = now_s
            self.pending_tokens -= running.uncached_tokens
            self._learn_prefill(running, now_s)
        was_heavy = number == self._heavy_computed and first_s is not None
        if was_heavy:
            self._heavy_computed = None
            self._heavy_rest_s = now_s + (now_s - running.started_s)
        # Not `replace`, which takes five times as long: this is done for every token.
        self.running[number] = Running(
            running.request, running.engine, expected, running.started_s, running.uncached_tokens,
            running.ahead_tokens, generated, first_s,
        )  # fmt: skip
        return was_heavy

    def finish(self, number: int, now_s: float) -> Running:
        """Gives back what a request held, however it ended."""
        running = self.running.pop(number)
        request = running.request
        if number == self._heavy_computed:
            self._heavy_computed = None
        self._tokens_now -= request.prompt_tokens + request.sequences * running.generated
        self.reserved_bytes -= _bytes_of(self.spec, running.request, running.output_tokens)
        if request.model in self.spec.adapters:
            self._adapters -= Counter({request.model: 1})  # forgets what is no more
        if running.first_s is None:
            self.pending_tokens -= running.uncached_tokens
        elif running.generated > 1:
            sample = (now_s - running.first_s) / (running.generated - 1)
            self.token_s += _SMOOTHING * (sample - self.token_s)
        return running

    def note_preemptions(self, count: int) -> None:
        """Takes the preemptions since the last look: each look with some leaves more room free,
        each without gives a little of it back.
        """
        if count > 0:
            self.margin_frac = min(_MAX_MARGIN, max(0.01, self.margin_frac) * _PREEMPTED)
        else:
            self.margin_frac = max(self.spec.margin_frac, self.margin_frac * _CALMED)

    def go_down(self) -> None:
        """The engine does not answer; when it does again, its cache is empty."""
        self.is_up = False
        self._prefixes.clear()

    def _has_slot(self, request: Request) -> bool:
        slots = self.spec.adapter_slots
        return slots is None or self.has_adapter(request) or len(self._adapters) < slots

    def _learn_prefill(self, running: Running, now_s: float) -> None:
        tokens = running.uncached_tokens + running.ahead_tokens
        took_s = now_s - running.started_s
        if tokens >= _FEWEST_TOKENS and took_s > 0:
            rate = tokens / took_s
            self.prefill_tokens_per_s += _SMOOTHING * (rate - self.prefill_tokens_per_s)


def _bytes_of(spec: EngineSpec, request: Request, output_tokens: int) -> int:
    tokens = request.prompt_tokens + request.sequences * output_tokens
    return spec.footprint.bytes_of(tokens, request.sequences)


def _bytes_now(spec: EngineSpec, running: Running) -> int:
    """The bytes that a request holds; of one whose tokens are not seen, all that is expected."""
    is_seen = running.request.is_streamed
    return _bytes_of(spec, running.request, running.generated if is_seen else running.output_tokens)


def _row(spec: EngineSpec, running: Running) -> tuple[int, int, int]:
    """Steps until the request ends, what it holds now, and how many bytes a step adds."""
    now = _bytes_now(spec, running)
    if not running.request.is_streamed:
        return running.output_tokens, now, 0
    remaining = max(0, running.output_tokens - running.generated)
    return remaining, now, running.request.sequences * spec.footprint.token_bytes
