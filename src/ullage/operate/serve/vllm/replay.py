"""Sends traffic to an engine in virtual time, and notes what becomes of each request.

    outcome = replay(engine, traffic, StepsByTime(clock, times, attention, engine.scheduler))

A request is added before the first step that the engine schedules at or after the moment when the
HTTP server has handed it over. Where the engine has nothing to do, the clock goes on to that of the
next one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from ullage.facts.gpus import find_gpu
from ullage.operate.serve.attention_times import AttentionTimes
from ullage.operate.serve.clock import Clock
from ullage.operate.serve.http_server import HttpServer, Streamed
from ullage.operate.serve.level_log import LevelLog
from ullage.operate.serve.prompts import make_prompt
from ullage.operate.serve.step_times import StepTimes
from ullage.operate.serve.task import Task
from ullage.operate.serve.traffic import Traffic
from ullage.operate.serve.vllm.engine_core import Engine
from ullage.operate.serve.vllm.executor import StepsByTime, Theirs

# A turn without a step, without tokens and without steps that are under way: after so many in a row
# the requests that are left can never run.
_STALLED_TURNS: Final = 8
_PROGRESS_STEPS: Final = 20_000


class _Replay:
    """The traffic on its way."""

    def __init__(self, engine: Engine, traffic: Traffic, steps: StepsByTime) -> None:
        self.engine, self.traffic, self.steps, self.clock = engine, traffic, steps, steps.clock
        number = len(traffic)
        self.server = HttpServer(traffic, steps.host)
        self.tokens = [0] * number
        self.cached = [0] * number
        self.usage: list[float | None] = [None] * number
        self.failures: dict[int, str] = {}
        self.levels = LevelLog()
        steps.on_given = lambda: self.levels.take(self.clock.now_s, self.usage_frac)

    @property
    def usage_frac(self) -> float:
        """The share of the cache that requests hold."""
        return float(self.engine.scheduler.kv_cache_manager.usage)

    def admit(self) -> None:
        """Adds the requests that have reached the engine."""
        while (index := self.server.take(self.clock.now_s)) is not None:
            self._add(index)

    def _add(self, index: int) -> None:
        output = int(self.traffic.output_tokens[index])
        self.usage[index] = self.usage_frac
        try:
            prompt = make_prompt(self.traffic, index, self.engine.prompt_of)
            self.engine.add(str(index), prompt, output)
        except ValueError as error:
            self.failures[index] = str(error)
            self.server.refuse(self.clock.now_s)

    def take(self, outputs: list[Theirs]) -> None:
        """Notes tokens at the time that it is now, and streams them."""
        now_s, tokens = self.clock.now_s, []
        for output in outputs:
            index, number = int(output.request_id), len(output.new_token_ids or ())
            if output.prefill_stats is not None:
                self.cached[index] = output.prefill_stats.num_cached_tokens
            self.tokens[index] += number
            is_last = output.finish_reason is not None
            if number or is_last:
                tokens.append(Streamed(index, number, is_last))
        self.server.stream(now_s, tokens)
        scheduler = self.engine.scheduler
        waiting = len(scheduler.requests) - len(scheduler.running)
        self.levels.note(now_s, len(scheduler.running), waiting, self.usage_frac)

    def run(self, on_progress: Callable[[str], None]) -> None:
        """Until every request has its answer, or those that are left can never run."""
        stalled = reported = 0
        while True:
            self.admit()
            if not self.engine.has_work:
                if self.server.is_over:
                    return
                self.clock.now_s = max(self.clock.now_s, self.server.next_s or 0.0)
                continue
            before = self.steps.num_steps
            outputs = self.engine.step()
            self.take(outputs)
            is_idle = self.steps.num_steps == before and not outputs
            if is_idle and self._waits_for_copies():
                continue
            stalled = stalled + 1 if is_idle and not self.engine.core.batch_queue else 0
            if stalled > _STALLED_TURNS:
                if self.server.is_over or self.server.next_s is None:
                    return
                self.clock.now_s, stalled = max(self.clock.now_s, self.server.next_s), 0
            if self.steps.num_steps - reported >= _PROGRESS_STEPS:
                reported = self.steps.num_steps
                on_progress(f"{self.clock.now_s:,.0f} s of traffic, {reported:,} steps")

    def _waits_for_copies(self) -> bool:
        """Goes on to the end of a copy, or to an arrival, where no step is under way."""
        if self.clock.device_free_s > self.clock.now_s:
            return False
        next_s = self.server.next_s
        return self.steps.wait_for_copies(math.inf if next_s is None else next_s)

    def document(self) -> dict[str, Any]:
        """For JSON: columns by request, levels over time, and what the steps took."""
        steps, count = self.steps, len(self.traffic)
        names = [str(index) for index in range(count)]
        return {
            "requests": {
                "arrival_s": self.server.arrivals.arrival_s,
                "begin_s": [steps.begins_s.get(name) for name in names],
                "first_token_s": self.server.first_s,
                "end_s": self.server.end_s,
                "output_tokens": self.tokens,
                "cached_tokens": self.cached,
                "num_preemptions": [steps.preempted[name] for name in names],
                "usage_frac": self.usage,
            },
            "rejected": {str(index): why for index, why in self.failures.items()},
            "num_sent": self.server.arrivals.num_sent,
            **self.levels.document,
            "end_s": self.clock.now_s,
            "num_steps": steps.num_steps,
            "device_s": steps.device_s,
            "prompt_s": steps.prompt_s,
            "attention_s": steps.attention_s,
            "host_s": steps.host_s,
            "stored_bytes": 0 if steps.transfers is None else steps.transfers.stored_bytes,
            "loaded_bytes": 0 if steps.transfers is None else steps.transfers.loaded_bytes,
        }


def replay(
    engine: Engine, traffic: Traffic, steps: StepsByTime, on_progress: Callable[[str], None]
) -> dict[str, Any]:
    """Sends the traffic; the outcome is a JSON document (see _Replay.document)."""
    run = _Replay(engine, traffic, steps)
    run.run(on_progress)
    return run.document()


def replay_loads(
    engine: Engine,
    task: Task,
    times: StepTimes,
    attention: AttentionTimes,
    on_progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Sends the traffic of a task at each of its loads, each time to an engine without requests and
    with an empty cache; an outcome for each load.
    """
    outcomes = []
    for load in task.loads:
        if len(task.loads) > 1:
            on_progress(f"load {load:g}")
        transfers = engine.transfers(find_gpu(task.gpu))
        steps = StepsByTime(
            Clock(), times, attention, engine.scheduler, task.host, transfers=transfers
        )
        engine.executor.by_time = steps
        engine.core.reset_prefix_cache(reset_connector=True)
        outcomes.append(replay(engine, task.traffic.at_load(load), steps, on_progress))
        engine.abort()  # those that can never run
    return outcomes
