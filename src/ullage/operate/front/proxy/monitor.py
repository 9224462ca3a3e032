"""Looks at engines each second: whether they answer, how full their caches are, whether they had to
preempt.

What the front knows of an engine from its own requests is exact but for those that others send
there. So an engine whose metrics are old is not given up: only half of its cache is used.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections import defaultdict
from contextlib import closing
from typing import Final

from ullage.operate.front.proxy.board import Board
from ullage.operate.front.proxy.upstream import EngineLost, Upstream

_LOG: Final = logging.getLogger("ullage.front")
_STALE_S: Final = 3.0
_LOST_S: Final = 30.0
_PATIENCE_S: Final = 2.0
_PAGE_BYTES: Final = 4 * 2**20  # of which no request notices that it is read
_USAGE: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
_PREEMPTIONS: Final = ("vllm:num_preemptions_total", "sglang:num_retracted_reqs_total")
_LINE: Final = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{.*\})? ([0-9.eE+-]+)", re.MULTILINE)


def read_metrics(text: str) -> tuple[float | None, int | None]:
    """The usage of an engine's cache and the number of its preemptions in Prometheus's text format;
    None: nothing is said of it. Of several values of a metric, as of ranks, the largest usage
    and the sum of preemptions count.

    Raises:
        ValueError: a value of them is not a finite number.
    """
    values: defaultdict[str, list[float]] = defaultdict(list)
    for name, number in _LINE.findall(text):
        if name in _USAGE or name in _PREEMPTIONS:
            values[name].append(float(number))
    usages = [value for name in _USAGE for value in values[name]]
    preemptions = [value for name in _PREEMPTIONS for value in values[name]]
    if not math.isfinite(sum(map(abs, (*usages, *preemptions)))):
        raise ValueError("a value of its metrics is not finite")
    usage_frac = min(1.0, max(0.0, *usages, 0.0)) if usages else None
    return usage_frac, int(sum(preemptions)) if preemptions else None


class Monitor:
    """Watches one engine. What goes wrong with an answer, whatever it is, counts as none."""

    def __init__(self, board: Board, upstream: Upstream) -> None:
        self._board, self._upstream = board, upstream
        self._engine = board.admission.engines[upstream.settings.spec.name]
        self._read_s = board.clock()
        self._num_preemptions: int | None = None
        self._trouble = ""

    async def look(self) -> None:
        """Looks once."""
        settings = self._upstream.settings
        if not settings.has_metrics and self._engine.is_up:
            return
        trouble = ""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._ask("/metrics" if settings.has_metrics else settings.health)
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
            self._miss(error)
        if trouble not in ("", self._trouble):
            _LOG.warning("engine %s: no answer of use (%s)", settings.spec.name, trouble)
        self._trouble = trouble

    async def _ask(self, path: str) -> None:
        settings = self._upstream.settings
        with closing(await self._upstream.send(path, silent_s=_PATIENCE_S)) as answer:
            body = await answer.read()
        if answer.status != 200:
            raise EngineLost(f"status {answer.status}")
        self._board.set_up(settings.spec.name, is_up=True)
        if len(body) > _PAGE_BYTES:
            raise ValueError(f"its page has {len(body)} bytes; expected {_PAGE_BYTES} or fewer")
        if settings.has_metrics:
            self._take(*read_metrics(body.decode("utf-8", "replace")))
        self._read_s = self._board.clock()
        self._engine.is_stale = False

    def _miss(self, error: Exception) -> None:
        """There is no answer of use: an engine that is busy answers late, one that is down refuses
        the connection, or stays silent for long.
        """
        age_s = self._board.clock() - self._read_s
        self._engine.is_stale = age_s > _STALE_S
        is_refused = isinstance(error, EngineLost) and error.is_unreachable
        is_silent = age_s > _LOST_S and not isinstance(error, ValueError)
        if is_refused or is_silent:
            self._board.set_up(self._upstream.settings.spec.name, is_up=False)
            self._num_preemptions = None

    def _take(self, usage_frac: float | None, num_preemptions: int | None) -> None:
        engine = self._engine
        if usage_frac is not None:
            seen_bytes = int(usage_frac * engine.spec.cache_bytes)
            engine.foreign_bytes = max(0, seen_bytes - engine.bytes_now)
        if num_preemptions is not None:
            if self._num_preemptions is not None:
                engine.note_preemptions(max(0, num_preemptions - self._num_preemptions))
            self._num_preemptions = num_preemptions
