"""Sends traffic to transformers' manager in virtual time, and notes what becomes of each request.

outcomes = send_loads(engine, task, times, reads, say)

A request is added before the first step that the manager schedules at or after its arrival. Where
it has nothing to do, the clock goes on to the next arrival.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ullage.operate.serve.arrivals import Arrivals
from ullage.operate.serve.clock import Clock
from ullage.operate.serve.level_log import LevelLog
from ullage.operate.serve.prompts import make_prompt
from ullage.operate.serve.step_times import StepTimes
from ullage.operate.serve.task import Task
from ullage.operate.serve.traffic import Traffic
from ullage.operate.serve.transformers.continuous import Engine
from ullage.operate.serve.transformers.read_times import ReadTimes
from ullage.operate.serve.transformers.timed_steps import StepsByTime

_PROGRESS_STEPS: Final = 20_000


class _Sender:
    """The traffic on its way."""

    def __init__(self, engine: Engine, traffic: Traffic, steps: StepsByTime) -> None:
        self.engine, self.traffic, self.steps, self.clock = engine, traffic, steps, steps.clock
        self.arrivals = Arrivals(traffic)
        self.end_s: list[float | None] = [None] * len(traffic)
        self.usage: list[float | None] = [None] * len(traffic)
        self.failures: dict[int, str] = {}
        self.open: set[int] = set()
        self.levels = LevelLog()
        steps.on_given = lambda: self.levels.take(self.clock.now_s, engine.usage_frac)

    def admit(self) -> None:
        """Adds the requests that have arrived."""
        while (index := self.arrivals.take(self.clock.now_s)) is not None:
            self._add(index)

    def _add(self, index: int) -> None:
        self.usage[index] = self.engine.usage_frac
        try:
            output = int(self.traffic.output_tokens[index])
            prompt = make_prompt(self.traffic, index, self.engine.prompt_of)
            self.engine.add(str(index), prompt, output)
        except ValueError as error:
            self.failures[index] = str(error)
            self.arrivals.free_user(self.clock.now_s)
            return
        self.open.add(index)

    def note(self) -> None:
        """Requests that have all their tokens, and the levels, at the time that it is now."""
        now_s, outputs = self.clock.now_s, self.traffic.output_tokens
        for index in sorted(self.open):
            if self.steps.tokens[str(index)] >= int(outputs[index]):
                self.end_s[index] = now_s
                self.open.discard(index)
                self.arrivals.free_user(self.clock.now_s)
        running = len(self.engine.scheduler.active_requests)
        self.levels.note(now_s, running, len(self.open) - running, self.engine.usage_frac)

    def run(self, on_progress: Callable[[str], None]) -> None:
        """Until every request has its answer, or those that are left can never run."""
        reported = 0
        while True:
            self.admit()
            try:
                is_busy = self.engine.step()
            except RuntimeError as error:  # the manager ends there, and fails all that it has
                on_progress(f"the engine ends at {self.clock.now_s:,.0f} s: {error}")
                return
            self.note()
            if not is_busy:
                if self.arrivals.is_over or self.arrivals.next_s is None:
                    return
                self.clock.now_s = max(self.clock.now_s, self.arrivals.next_s)
            if self.steps.num_steps - reported >= _PROGRESS_STEPS:
                reported = self.steps.num_steps
                on_progress(f"{self.clock.now_s:,.0f} s of traffic, {reported:,} steps")

    def document(self) -> dict[str, Any]:
        """For JSON, as ullage.operate.serve.outcome.read_outcome takes it."""
        steps, names = self.steps, [str(index) for index in range(len(self.traffic))]
        return {
            "requests": {
                "arrival_s": self.arrivals.arrival_s,
                "begin_s": [steps.begins_s.get(name) for name in names],
                "first_token_s": [steps.first_s.get(name) for name in names],
                "end_s": self.end_s,
                "output_tokens": [steps.tokens[name] for name in names],
                "cached_tokens": [self.engine.cached.get(name, 0) for name in names],
                "num_preemptions": [self.engine.preempted[name] for name in names],
                "usage_frac": self.usage,
            },
            "rejected": {str(index): why for index, why in self.failures.items()},
            "num_sent": self.arrivals.num_sent,
            **self.levels.document,
            "end_s": self.clock.now_s,
            "num_steps": steps.num_steps,
            "device_s": steps.device_s,
            "prompt_s": steps.prompt_s,
            "attention_s": steps.attention_s,
            "host_s": 0.0,
        }


def send(
    engine: Engine, traffic: Traffic, steps: StepsByTime, on_progress: Callable[[str], None]
) -> dict[str, Any]:
    """Sends the traffic; the outcome is a JSON document (see _Sender.document)."""
    engine.use_times(steps)
    run = _Sender(engine, traffic, steps)
    run.run(on_progress)
    return run.document()


def send_loads(
    engine: Engine,
    task: Task,
    times: StepTimes,
    reads: ReadTimes,
    on_progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Sends the traffic of a task at each of its loads, each time to an engine without requests and
    with an empty cache; an outcome for each load.
    """
    stream = engine.processor.inputs_and_outputs.compute_stream
    outcomes = []
    for load in task.loads:
        if len(task.loads) > 1:
            on_progress(f"load {load:g}")
        steps = StepsByTime(Clock(), times, reads, stream)
        outcomes.append(send(engine, task.traffic.at_load(load), steps, on_progress))
    return outcomes
