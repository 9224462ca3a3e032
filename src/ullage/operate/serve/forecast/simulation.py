"""The scheduler of vLLM on counts: which requests are in a step, and which lose their blocks.

    outcome = simulate(traffic, limits, seconds)
    outcome.num_preemptions.sum()

A step has the running requests first, then those that wait, in the order of their arrival, up to
max_num_batched_tokens and max_num_seqs. A request is let in where its whole prompt has room. One
that runs and finds no block takes those of the request that was let in last, which goes back to
the front of the queue, keeps its tokens, and computes their keys and values again.

Steps in which every request gets one token and nobody can be let in are done several at a time.
Source: vLLM 0.32, v1/core/sched/scheduler.py (schedule), v1/core/kv_cache_manager.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from ullage.ground.protocol.plain import Mark, figure
from ullage.operate.serve.forecast.block_pool import BlockPool
from ullage.operate.serve.measures import find_percentiles
from ullage.operate.serve.traffic import Traffic

_MOST_AT_ONCE: Final = 64
"""Steps; the contexts, and with them the time of a step, change little in this many."""
Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


class Seconds(Protocol):
    """The seconds of a step."""

    def __call__(self, decodes: int, contexts: int, prompts: Sequence[tuple[int, int]]) -> float:
        """The seconds of `decodes` requests with one token each and `contexts` tokens in all, and
        of parts of prompts: their tokens, and the context at their end.
        """


@dataclass(frozen=True, slots=True)
class Limits:
    """A server.

    Attributes:
        num_blocks: of the cache; vLLM keeps one to itself.
        block_tokens: of a block.
        max_num_seqs, max_num_batched_tokens, max_model_len: as its options.
        has_prefix_caching: equal blocks are found again.
        is_async: a request's blocks are given back one step later.
        blocks_of: blocks of a context, in whole blocks of tokens; None: as many.
    """

    num_blocks: int
    block_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    has_prefix_caching: Annotated[bool, Mark.NO_KEY] = True
    is_async: Annotated[bool, Mark.NO_KEY] = True
    blocks_of: Annotated[Callable[[int], int] | None, Mark.NO_KEY] = None

    def blocks(self, tokens: int) -> int:
        """Blocks that this many tokens of a request take."""
        whole = -(-tokens // self.block_tokens)
        return whole if self.blocks_of is None else self.blocks_of(whole)


@dataclass(frozen=True, slots=True)
class Simulated:
    """The outcome of the requests; columns in their order.

    Attributes:
        arrival_s, first_token_s, end_s: NAN: never.
        num_preemptions: of each.
        is_refused: beyond max_model_len.
        usage_peak_frac, usage_mean_frac: the cache in use, at most and over time.
        waiting_peak: requests that waited at once.
        duration_s: until the last answer.
        num_steps: of the scheduler.
    """

    arrival_s: Annotated[Floats, Mark.NO_KEY]
    first_token_s: Annotated[Floats, Mark.NO_KEY]
    end_s: Annotated[Floats, Mark.NO_KEY]
    num_preemptions: Annotated[Counts, Mark.NO_KEY]
    is_refused: Annotated[npt.NDArray[np.bool_], Mark.NO_KEY]
    usage_peak_frac: float
    usage_mean_frac: float
    waiting_peak: int
    duration_s: float
    num_steps: Annotated[int, Mark.NO_KEY]

    @figure
    def counts(self) -> Annotated[Mapping[str, int], Mark.FLAT]:
        """The requests that were refused, and that were preempted."""
        preempted = (self.num_preemptions > 0).sum()
        return {"num_refused": self.is_refused.sum(), "num_preempted": preempted}

    @figure
    def latencies(self) -> Annotated[Mapping[str, Any], Mark.FLAT]:
        """The seconds to the first and to the last token."""
        ends = {"ttft_s": self.first_token_s, "e2e_s": self.end_s}
        rows = [(name, find_percentiles(end - self.arrival_s)) for name, end in ends.items()]
        return {name: None if row.p50 is None else row._asdict() for name, row in rows}


class _Request:
    """A request on its way: `tokens` that it has, `computed` of them in the cache."""

    __slots__ = (
        "blocks", "computed", "generated", "hashes", "index", "output", "reached", "tokens",
        "units",
    )  # fmt: skip

    def __init__(self, index: int, prompt: int, output: int, hashes: tuple[int, ...]) -> None:
        self.index, self.tokens, self.output, self.hashes = index, prompt, output, hashes
        self.computed = self.generated = self.blocks = self.reached = 0
        self.units: list[int] = []


def simulate(traffic: Traffic, limits: Limits, seconds: Seconds) -> Simulated:
    """Runs the traffic to its end."""
    run = _Simulation(traffic, limits, seconds)
    run.run()
    return run.result()


class _Simulation:
    """The state of the server."""

    def __init__(self, traffic: Traffic, limits: Limits, seconds: Seconds) -> None:
        self.traffic, self.limits, self.seconds = traffic, limits, seconds
        self.pool = BlockPool(limits.num_blocks - 1)
        self.references: dict[int, int] = {}
        self.most_at_once = _MOST_AT_ONCE
        self.unit_blocks = traffic.block_tokens // limits.block_tokens
        self.has_prefixes = (
            limits.has_prefix_caching and limits.blocks_of is None and self.unit_blocks > 0
        )
        self.waiting: deque[_Request] = deque()
        self.running: list[_Request] = []
        self.ended: list[_Request] = []
        self.now_s, self.next, self.num_open, self.num_steps = 0.0, 0, 0, 0
        self.peak, self.area, self.waiting_peak = 0, 0.0, 0
        number = len(traffic)
        self.arrival_s = traffic.arrival_s.copy()
        self.first_s, self.end_s = np.full(number, np.nan), np.full(number, np.nan)
        self.preemptions = np.zeros(number, dtype=np.int64)
        self.refused = np.zeros(number, dtype=np.bool_)

    def run(self) -> None:
        """Until every request has its answer, or those that are left can never run."""
        while True:
            self._admit()
            if not self.running and not self.waiting and not self.ended:
                if self.next >= len(self.traffic):
                    return
                self.now_s = max(self.now_s, float(self.arrival_s[self.next]))
                continue
            if not self._step():
                if not self.ended:
                    return  # the first that waits has no room even in an empty cache
                self._release()

    def _admit(self) -> None:
        traffic, users = self.traffic, self.traffic.num_users
        while self.next < len(traffic):
            index = self.next
            if users is not None:
                if self.num_open >= users:
                    break
                self.arrival_s[index] = self.now_s
            elif self.arrival_s[index] > self.now_s:
                break
            self.next += 1
            prompt, output = int(traffic.prompt_tokens[index]), int(traffic.output_tokens[index])
            if prompt + output > self.limits.max_model_len:
                self.refused[index] = True
                continue
            hashes = tuple(traffic.blocks_of(index).tolist()) if self.has_prefixes else ()
            # Only whole blocks of the prompt are found again.
            hashes = hashes[: prompt // traffic.block_tokens]
            self.waiting.append(_Request(index, prompt, output, hashes))
            self.num_open += 1
        self.waiting_peak = max(self.waiting_peak, len(self.waiting))

    def _step(self) -> bool:
        """One step, or several alike; False: nothing can be in one."""
        parts, is_full = self._schedule()
        if not parts:
            return False
        decodes = [request for request, tokens in parts if tokens == 1]
        prompts = [(tokens, request.computed) for request, tokens in parts if tokens > 1]
        contexts = sum(request.computed for request in decodes)
        step_s = self.seconds(len(decodes), contexts, prompts)
        self._spend(step_s)
        # What is given back now may let somebody in at the next step.
        is_same = not self.ended
        self._release()
        self._sample(request for request, _ in parts)
        is_same = is_same and not self.ended and len(parts) == len(self.running)
        if is_same and is_full and not prompts:
            self._decode_on(step_s, contexts)
        return True

    def _spend(self, step_s: float, steps: int = 1) -> None:
        used = self.pool.size - self.pool.free
        self.peak = max(self.peak, used)
        self.area += used * step_s * steps
        self.now_s += step_s * steps
        self.num_steps += steps

    def _schedule(self) -> tuple[list[tuple[_Request, int]], bool]:
        """The step's requests with their tokens, and whether nobody else can be let in until one
        ends or arrives.
        """
        budget, parts = self.limits.max_num_batched_tokens, []
        index, was_preempted = 0, False
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            tokens = min(request.tokens - request.computed, budget)
            has_room = self._allocate(request, tokens)
            while not has_room:
                victim = self.running.pop()
                self._preempt(victim)
                was_preempted = True
                if victim is request:
                    break
                has_room = self._allocate(request, tokens)
            if not has_room:
                break
            request.computed += tokens
            parts.append((request, tokens))
            budget -= tokens
            index += 1
        if was_preempted:
            return parts, False
        return parts, self._let_in(parts, budget)

    def _let_in(self, parts: list[tuple[_Request, int]], budget: int) -> bool:
        """Lets waiting requests in; whether the first that waits has no room, or none waits."""
        while self.waiting and budget > 0:
            if len(self.running) >= self.limits.max_num_seqs:
                return True
            request = self.waiting[0]
            if not self._find(request):
                return True
            tokens = min(request.tokens - request.computed, budget)
            self._allocate(request, tokens)
            self.waiting.popleft()
            self.running.append(request)
            request.computed += tokens
            parts.append((request, tokens))
            budget -= tokens
        return not self.waiting

    def _allocate(self, request: _Request, tokens: int) -> bool:
        needed = self.limits.blocks(request.computed + tokens) - request.blocks
        if needed > self.pool.free:
            return False
        if needed > 0:
            self.pool.take(needed)
            request.blocks += needed
            self._share(request)
        return True

    def _share(self, request: _Request) -> None:
        """Lets others find the whole units of its prompt that it has blocks for, from now on."""
        if not request.hashes:
            return
        last = min(len(request.hashes), request.blocks // self.unit_blocks)
        for number in range(request.reached, last):
            unit = request.hashes[number]
            # Where another has the same, or it lies in the cache, this copy is its own alone.
            if not self.references.get(unit) and not self.pool.resident(("unit", unit)):
                self.references[unit] = 1
                request.units.append(unit)
        request.reached = max(request.reached, last)

    def _find(self, request: _Request) -> bool:
        """Finds blocks of a waiting request in the cache, where all of its tokens have room."""
        units, own, unused = self._cached(request)
        block = self.limits.block_tokens
        there = len(units) * self.unit_blocks + own
        needed = self.limits.blocks(request.tokens) - there
        if max(0, needed) + unused > self.pool.free:
            return False
        for unit in units:
            if not self.references.get(unit):
                self.pool.reclaim(("unit", unit), self.unit_blocks)
            self.references[unit] = self.references.get(unit, 0) + 1
        self.pool.reclaim(("request", request.index), own)
        request.units, request.reached = list(units), len(units)
        request.blocks = there
        request.computed = min(there, (request.tokens - 1) // block) * block
        return True

    def _cached(self, request: _Request) -> tuple[tuple[int, ...], int, int]:
        """The cached blocks: whole units that others have or had, then blocks of the request
        itself; and how many of both nobody uses now.
        """
        unused = 0
        for number, unit in enumerate(request.hashes):
            is_used = bool(self.references.get(unit))
            if not is_used and self.pool.resident(("unit", unit)) < self.unit_blocks:
                return request.hashes[:number], 0, unused
            unused += 0 if is_used else self.unit_blocks
        if not self.limits.has_prefix_caching or self.limits.blocks_of is not None:
            return request.hashes, 0, unused
        own = self.pool.resident(("request", request.index))
        return request.hashes, own, unused + own

    def _preempt(self, request: _Request) -> None:
        self.preemptions[request.index] += 1
        self._free(request)
        request.computed = 0
        self.waiting.appendleft(request)

    def _free(self, request: _Request) -> None:
        """Gives its blocks back: its own first, then those of its prompt, from their end."""
        own = request.blocks - len(request.units) * self.unit_blocks
        is_whole = len(request.units) == len(request.hashes)
        self.pool.give(("request", request.index) if is_whole else None, own)
        for unit in reversed(request.units):
            self.references[unit] -= 1
            if not self.references[unit]:
                self.pool.give(("unit", unit), self.unit_blocks)
        request.units, request.blocks, request.reached = [], 0, 0

    def _sample(self, requests: Iterable[_Request]) -> None:
        for request in list(requests):
            if request.computed < request.tokens:
                continue
            request.generated += 1
            if request.generated == 1:
                self.first_s[request.index] = self.now_s
            if request.generated >= request.output:
                self.end_s[request.index] = self.now_s
                self.ended.append(request)
                self.num_open -= 1
            else:
                request.tokens += 1
        if self.ended:
            gone = {request.index for request in self.ended}
            self.running = [each for each in self.running if each.index not in gone]
            if not self.limits.is_async:
                self._release()

    def _release(self) -> None:
        for request in self.ended:
            self._free(request)
        self.ended.clear()

    def _decode_on(self, step_s: float, contexts: int) -> None:
        """More steps like the last one, until something else happens: at most so many that nobody
        ends in them, every block has room, and nobody arrives.
        """
        running, users = self.running, self.traffic.num_users
        steps = min(request.output - request.generated for request in running) - 1
        if self.next < len(self.traffic) and users is None:
            left_s = float(self.arrival_s[self.next]) - self.now_s
            steps = min(steps, int(left_s / step_s)) if step_s > 0 else 0
        steps = min(steps, self.most_at_once)
        while steps > 0 and self._growth(steps) > self.pool.free:
            steps //= 2
        if steps <= 0:
            return
        for request in running:
            self._allocate(request, steps)
            request.computed += steps
            request.tokens += steps
            request.generated += steps
        number = len(running)
        middle = contexts + number * (steps + 1) // 2
        self._spend(self.seconds(number, middle, ()), steps)

    def _growth(self, steps: int) -> int:
        blocks = self.limits.blocks
        return sum(blocks(each.computed + steps) - each.blocks for each in self.running)

    def result(self) -> Simulated:
        """The columns."""
        size = max(1, self.pool.size)
        mean = self.area / size / self.now_s if self.now_s else 0.0
        return Simulated(
            self.arrival_s, self.first_s, self.end_s, self.preemptions, self.refused,
            self.peak / size, mean, self.waiting_peak, self.now_s, self.num_steps,
        )  # fmt: skip
