"""Replays traffic against model engines in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.front.dispatch import Dispatch
from benchmarks.front.engine_model import BLOCK, EngineModel
from benchmarks.front.traffic import FIRST_TOKEN_S, Arrival

TOKEN_S = 0.06  # of the SLO: mean seconds for each token after the first
LOOK_S = 1.0


@dataclass(slots=True)
class Times:
    """When the first and the last token of a request came; byte-seconds are in token-seconds."""

    first_s: float | None = None
    last_s: float | None = None


@dataclass(slots=True)
class Result:
    """What became of the traffic."""

    arrivals: Sequence[Arrival]
    times: dict[int, Times] = field(default_factory=dict)
    token_seconds: dict[str, float] = field(default_factory=dict)
    num_preemptions: int = 0

    def is_good(self, arrival: Arrival) -> bool:
        """Whether a request met the SLO."""
        times = self.times.get(arrival.id)
        if times is None or times.first_s is None or times.last_s is None:
            return False
        if times.first_s - arrival.arrival_s > FIRST_TOKEN_S[arrival.tenant]:
            return False
        rest = max(1, arrival.output_tokens - 1)
        return (times.last_s - times.first_s) / rest <= TOKEN_S

    def goodput(self, tenant: str | None = None) -> float:
        """Share of the requests, of one tenant or all, that met the SLO."""
        rows = [each for each in self.arrivals if tenant in (None, each.tenant)]
        return sum(self.is_good(each) for each in rows) / max(1, len(rows))


def simulate(
    arrivals: Sequence[Arrival], engines: Sequence[EngineModel],
    make: Callable[[Sequence[EngineModel]], Dispatch], drain_s: float = 120.0,
) -> Result:  # fmt: skip
    """Sends the traffic through a dispatch, until `drain_s` after its last request."""
    dispatch, result = make(engines), Result(arrivals)
    end_s = (arrivals[-1].arrival_s if arrivals else 0.0) + drain_s
    heap: list[tuple[float, int, int]] = []  # time, kind (0 engine, 1 arrival, 2 look), which
    if arrivals:
        heapq.heappush(heap, (arrivals[0].arrival_s, 1, 0))
    heapq.heappush(heap, (LOOK_S, 2, 0))
    while heap:
        now_s, kind, which = heapq.heappop(heap)
        if now_s > end_s:
            break
        if kind == 0:
            _end_step(engines[which], dispatch, result, now_s)
        elif kind == 1:
            dispatch.arrive(arrivals[which], now_s)
            if which + 1 < len(arrivals):
                heapq.heappush(heap, (arrivals[which + 1].arrival_s, 1, which + 1))
        else:
            dispatch.look()
            heapq.heappush(heap, (now_s + LOOK_S, 2, 0))
        for arrival, engine in dispatch.decide(now_s):
            engine.submit(arrival)
            result.times[arrival.id] = Times()
        for number, engine in enumerate(engines):
            if engine.end_s is None:
                engine.begin(now_s, heap[0][0] if heap else end_s)
                if engine.end_s is not None:
                    _hold(engine, result, engine.end_s - now_s)
                    heapq.heappush(heap, (engine.end_s, 0, number))
    result.num_preemptions = sum(engine.num_preemptions for engine in engines)
    return result


def _end_step(engine: EngineModel, dispatch: Dispatch, result: Result, now_s: float) -> None:
    advanced, complete = engine.finish_step()
    for sequence in advanced:
        times = result.times[sequence.arrival.id]
        if times.first_s is None:
            times.first_s = now_s
        dispatch.advance(sequence.arrival, sequence.generated, now_s)
    for sequence in complete:
        result.times[sequence.arrival.id].last_s = now_s
        dispatch.finish(sequence.arrival, now_s)


def _hold(engine: EngineModel, result: Result, took_s: float) -> None:
    """Counts what each tenant holds during a step."""
    for sequence in engine.running:
        tenant = sequence.arrival.tenant
        tokens = -(-sequence.tokens // BLOCK) * BLOCK
        result.token_seconds[tenant] = result.token_seconds.get(tenant, 0.0) + tokens * took_s
