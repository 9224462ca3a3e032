"""Looks at engines each second: whether they answer, how full their caches are, whether they had to
preempt.

What the front knows of an engine from its own requests is exact but for those that others send
there. So an engine whose metrics are old is not given up: only half of its cache is used.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Final

from ullage.front.proxy.board import Board
from ullage.front.proxy.upstream import EngineLost, Upstream

_INTERVAL_S: Final = 1.0
_STALE_S: Final = 3.0
_LOST_S: Final = 30.0
_PATIENCE_S: Final = 2.0
_USAGE: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
_PREEMPTIONS: Final = ("vllm:num_preemptions_total", "sglang:num_retracted_reqs_total")
_LINE: Final = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{.*\})? ([0-9.eE+-]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """What an engine's page says; None: nothing of it."""

    usage_frac: float | None
    num_preemptions: int | None


def read_metrics(text: str) -> EngineMetrics:
    """Reads Prometheus's text format. Of several values of a metric, as of ranks, the largest usage
    and the sum of preemptions count.
    """
    values: dict[str, list[float]] = {}
    for name, number in _LINE.findall(text):
        try:
            values.setdefault(name, []).append(float(number))
        except ValueError:
            continue
    usages = [value for name in _USAGE for value in values.get(name, ())]
    preemptions = [value for name in _PREEMPTIONS for value in values.get(name, ())]
    return EngineMetrics(
        min(1.0, max(0.0, *usages, 0.0)) if usages else None,
        int(sum(preemptions)) if preemptions else None,
    )


class Monitor:
    """Watches one engine."""

    def __init__(self, board: Board, upstream: Upstream) -> None:
        self._board, self._upstream = board, upstream
        self._engine = board.admission.engines[upstream.settings.spec.name]
        self._read_s = board.clock()
        self._num_preemptions: int | None = None

    async def run(self) -> None:
        """Looks until it is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_INTERVAL_S)

    async def look(self) -> None:
        """Looks once."""
        settings = self._upstream.settings
        engine = self._engine
        if not settings.has_metrics and engine.is_up:
            return
        path = "/metrics" if settings.has_metrics else settings.health
        try:
            async with asyncio.timeout(_PATIENCE_S):
                async with self._upstream.open(path, silent_s=_PATIENCE_S) as answer:
                    body = await answer.read()
        except (EngineLost, TimeoutError) as error:
            self._miss(is_refused=isinstance(error, EngineLost) and error.is_unreachable)
            return
        if answer.status != 200:
            self._miss(is_refused=False)
            return
        self._read_s = self._board.clock()
        engine.is_stale = False
        if settings.has_metrics:
            self._take(read_metrics(body.decode("utf-8", "replace")))
        self._board.set_up(settings.spec.name, is_up=True)

    def _miss(self, *, is_refused: bool) -> None:
        """There is no answer: an engine that is busy answers late, one that is down refuses the
        connection, or stays silent for long.
        """
        age_s = self._board.clock() - self._read_s
        self._engine.is_stale = age_s > _STALE_S
        if is_refused or age_s > _LOST_S:
            self._board.set_up(self._upstream.settings.spec.name, is_up=False)
            self._num_preemptions = None

    def _take(self, metrics: EngineMetrics) -> None:
        engine = self._engine
        if metrics.usage_frac is not None:
            seen_bytes = int(metrics.usage_frac * engine.spec.cache_bytes)
            engine.foreign_bytes = max(0, seen_bytes - engine.bytes_now)
        if metrics.num_preemptions is not None:
            before = self._num_preemptions
            if before is not None:
                engine.note_preemptions(max(0, metrics.num_preemptions - before))
            self._num_preemptions = metrics.num_preemptions
