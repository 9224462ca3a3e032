"""The replay in virtual time, with a small engine in vLLM's place: arrivals, closed loops, prompts
that are alike, requests that are refused or can never run.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from tests.rows import each

from ullage.operate.serve.host_time import HostTime
from ullage.operate.serve.step_times import Launches, StepTimes, step_sizes
from ullage.operate.serve.traffic import Traffic, load_traffic
from ullage.operate.serve.vllm.engine_core import prompt_tokens
from ullage.operate.serve.vllm.executor import StepsByTime
from ullage.operate.serve.vllm.offloading import Transfers
from ullage.operate.serve.vllm.replay import replay

STEP_S = 0.01


class NoAttention:
    """Attention takes no time."""

    def decode_s(self, requests: int, context: float) -> float:
        return 0.0

    def prefill_s(self, tokens: int, context: int) -> float:
        return 0.0


class FixedClock:
    """A clock without a phantom."""

    def __init__(self) -> None:
        self.now_s = self.device_free_s = 0.0


class SmallEngine:
    """First come, first served: at most `seats` requests, each gets a token in a step. A prompt
    beyond `longest` is refused, one beyond `room` never gets a seat.
    """

    def __init__(self, seats: int = 4, longest: int = 1000, room: int = 500) -> None:
        self.seats, self.longest, self.room = seats, longest, room
        self.prompts: dict[str, list[int]] = {}
        self.left: dict[str, int] = {}
        self.requests: dict[str, SimpleNamespace] = {}
        self.running: list[str] = []
        self.scheduler = SimpleNamespace(
            requests=self.requests, running=self.running,
            kv_cache_manager=SimpleNamespace(usage=0.0),
        )  # fmt: skip
        self.core = SimpleNamespace(batch_queue=[])
        self.steps: Any = None

    def prompt_of(self, number: int, tokens: int) -> list[int]:
        return ([number] + [0] * (tokens - 1))[:tokens]

    def add(self, name: str, prompt: list[int], output: int) -> None:
        if len(prompt) > self.longest:
            raise ValueError("longer than max_model_len")
        self.prompts[name], self.left[name] = prompt, output
        self.requests[name] = SimpleNamespace(num_computed_tokens=0, is_prefill_chunk=False)

    @property
    def has_work(self) -> bool:
        return bool(self.requests)

    def step(self) -> list[Any]:
        for name in self.requests:
            fits = len(self.prompts[name]) <= self.room and len(self.running) < self.seats
            if fits and name not in self.running:
                self.running.append(name)
        self.scheduler.kv_cache_manager.usage = len(self.running) / self.seats
        if not self.running:
            return []
        fresh = [name for name in self.running if not self.requests[name].num_computed_tokens]
        tokens = {name: len(self.prompts[name]) if name in fresh else 1 for name in self.running}
        for name, count in tokens.items():
            self.requests[name].num_computed_tokens += count
        scheduled = SimpleNamespace(
            preempted_req_ids=None, num_scheduled_tokens=tokens,
            total_num_scheduled_tokens=sum(tokens.values()),
            scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in fresh],
            kv_connector_metadata=None,
        )  # fmt: skip
        end_s, names, _ = self.steps.give(scheduled)
        self.steps.clock.now_s = end_s
        return [self._output(name) for name in names]

    def _output(self, name: str) -> Any:
        self.left[name] -= 1
        is_done = self.left[name] == 0
        if is_done:
            self.running.remove(name)
            del self.requests[name]
        self.scheduler.kv_cache_manager.usage = len(self.running) / self.seats
        return SimpleNamespace(
            request_id=name, new_token_ids=[1], finish_reason="length" if is_done else None,
            prefill_stats=None,
        )  # fmt: skip


@pytest.fixture
def run() -> Callable[..., tuple[dict[str, Any], SmallEngine]]:
    def of(traffic: Traffic, **limits: int) -> tuple[dict[str, Any], SmallEngine]:
        engine = SmallEngine(**limits)
        times = StepTimes.of({1: STEP_S}, {1: STEP_S})
        engine.steps = StepsByTime(FixedClock(), times, NoAttention(), engine.scheduler)  # type: ignore[arg-type]
        return replay(engine, traffic, engine.steps, lambda _: None), engine  # type: ignore[arg-type]

    return of


Run = Callable[..., tuple[dict[str, Any], SmallEngine]]


def test_the_clock_goes_on_to_the_next_arrival(run: Run) -> None:
    document, _ = run(Traffic.of("two", [0.0, 100.0], [10, 10], [3, 3]))
    rows = document["requests"]
    assert rows["first_token_s"] == pytest.approx([STEP_S, 100 + STEP_S])
    assert rows["end_s"] == pytest.approx([3 * STEP_S, 100 + 3 * STEP_S])
    assert document["num_steps"] == 6 and document["device_s"] == pytest.approx(6 * STEP_S)


def test_a_request_waits_for_the_step_that_runs(run: Run) -> None:
    document, _ = run(Traffic.of("two", [0.0, 0.015], [10, 10], [9, 1]))
    assert document["requests"]["begin_s"][1] == pytest.approx(0.02)
    assert document["requests"]["first_token_s"][1] == pytest.approx(0.03)


def test_a_full_server_makes_requests_wait(run: Run) -> None:
    document, _ = run(Traffic.of("three", [0.0, 0.0, 0.0], [10] * 3, [5] * 3), seats=2)
    rows = document["requests"]
    assert rows["begin_s"] == pytest.approx([0, 0, 5 * STEP_S])
    assert document["usage_peak_frac"] == 1.0


def test_a_cache_is_in_use_while_a_step_runs(run: Run) -> None:
    """Also by requests that give their blocks back with it."""
    document, _ = run(Traffic.of("two", [0.0, 0.99], [10, 10], [1, 1]), seats=2)
    assert document["usage_peak_frac"] == 0.5
    assert document["usage_mean_frac"] == pytest.approx(2 * STEP_S * 0.5 / 1.0)


def test_a_closed_loop_has_no_more_than_its_users(run: Run) -> None:
    document, _ = run(load_traffic("closed:users=2,requests=6,prompt=10,output=5"))
    rows = document["requests"]
    moments = sorted({round(moment, 6) for moment in rows["arrival_s"]})
    assert moments == pytest.approx([0.0, 5 * STEP_S, 10 * STEP_S])
    assert max(document["levels"]["running"]) <= 2


def test_a_refused_request_is_noted_and_the_others_go_on(run: Run) -> None:
    document, _ = run(Traffic.of("long", [0.0, 0.0], [5000, 10], [3, 3]))
    assert document["rejected"] == {"0": "longer than max_model_len"}
    assert document["requests"]["end_s"][1] == pytest.approx(3 * STEP_S)


def test_a_request_that_never_fits_ends_the_replay(run: Run) -> None:
    """The requests after it are answered all the same."""
    traffic = Traffic.of("stuck", [0.0, 1.0, 2.0], [700, 10, 10], [3, 3, 3])
    document, _ = run(traffic)
    assert document["requests"]["end_s"][0] is None
    assert None not in document["requests"]["end_s"][1:]


def test_equal_blocks_are_equal_prompts_and_nothing_else_is(run: Run) -> None:
    traffic = Traffic.of(
        "blocks", [0.0, 0.0, 0.0], [300, 300, 300], [1, 1, 1],
        blocks=[[7, 8], [7, 9], []], block_tokens=128,
    )  # fmt: skip
    _, engine = run(traffic)
    first, second, third = (engine.prompts[str(index)] for index in range(3))
    assert [len(prompt) for prompt in (first, second, third)] == [300] * 3
    assert first[:128] == second[:128] and first[128:256] != second[128:256]
    assert third[:128] != first[:128] and first[256:] != second[256:]


def test_two_runs_are_equal(run: Run) -> None:
    traffic = load_traffic("poisson:rate=50,prompt=50,output=20,spread=0.5,duration=10s")
    assert run(traffic)[0] == run(traffic)[0]


def test_steps_between_measured_sizes_are_linear() -> None:
    times = StepTimes.of({1: 1.0, 4: 4.0}, {2: 10.0})
    assert [times.seconds(size, is_decode=True) for size in (1, 2, 4, 8)] == [1, 2, 4, 8]
    assert times.seconds(100, is_decode=False) == 10.0
    noisy = StepTimes.of({1: 3.0, 2: 2.0, 4: 9.0, 8: 4.0}, {1: 1.0})
    assert noisy.decode == ((1, 2.0), (2, 2.0), (4, 4.0), (8, 4.0))
    assert [*step_sizes(20)] == [1, 2, 4, 8, 12, 16, 20]


def test_a_user_thinks_before_its_next_request(run: Run) -> None:
    document, _ = run(load_traffic("closed:users=1,requests=3,prompt=10,output=5,think=1s"))
    moments = document["requests"]["arrival_s"]
    assert moments == pytest.approx([0.0, 1 + 5 * STEP_S, 2 + 10 * STEP_S])


def test_a_refused_request_of_a_closed_loop_frees_its_user(run: Run) -> None:
    traffic = load_traffic("closed:users=1,requests=2,prompt=5000,output=5")
    document, _ = run(traffic)
    assert len(document["rejected"]) == 2


def test_the_host_delays_an_idle_device_and_hides_behind_a_busy_one() -> None:
    clock = FixedClock()
    times = StepTimes.of({1: STEP_S}, {1: STEP_S})
    requests = {"a": SimpleNamespace(num_computed_tokens=5, is_prefill_chunk=False)}
    steps = StepsByTime(
        clock, times, NoAttention(), SimpleNamespace(requests=requests), HostTime(0.001, 0.002),  # type: ignore[arg-type]
    )  # fmt: skip
    scheduled = SimpleNamespace(
        preempted_req_ids=None, num_scheduled_tokens={"a": 1}, total_num_scheduled_tokens=1,
        scheduled_new_reqs=[], kv_connector_metadata=None,
    )  # fmt: skip
    assert steps.give(scheduled)[0] == pytest.approx(0.003 + STEP_S)
    assert steps.give(scheduled)[0] == pytest.approx(0.003 + 2 * STEP_S)
    assert clock.now_s == pytest.approx(0.006) and steps.host_s == pytest.approx(0.006)


def test_a_step_ends_no_sooner_than_its_last_kernel_was_launched() -> None:
    """And the loop looks after requests only then; a graph begins after what comes before it."""
    clock = FixedClock()
    times = StepTimes.of(
        {1: STEP_S}, {8: STEP_S}, {1: Launches(6, 4)}, {8: Launches(30), 16: Launches(50)}
    )
    requests = {"a": SimpleNamespace(num_computed_tokens=5, is_prefill_chunk=False)}
    steps = StepsByTime(
        clock, times, NoAttention(), SimpleNamespace(requests=requests), HostTime(launch_s=0.001),  # type: ignore[arg-type]
    )  # fmt: skip

    def give(tokens: int) -> float:
        return steps.give(
            SimpleNamespace(
                preempted_req_ids=None, num_scheduled_tokens={"a": tokens},
                total_num_scheduled_tokens=tokens, scheduled_new_reqs=[],
                kv_connector_metadata=None,
            )
        )[0]  # fmt: skip

    assert give(8) == pytest.approx(0.030) and clock.now_s == pytest.approx(0.030)
    assert give(1) == pytest.approx(0.034 + STEP_S) and clock.now_s == pytest.approx(0.036)
    assert give(9) == pytest.approx(0.086)  # the next larger size's kernels


class LoadingEngine(SmallEngine):
    """Its first request waits for blocks that come back from the host."""

    is_ordered = is_loaded = False

    def step(self) -> list[Any]:
        steps = self.steps
        if not self.is_ordered:
            self.is_ordered = True
            order = SimpleNamespace(req_id="0", dst_spec=SimpleNamespace(block_ids=[1, 2]))
            orders = SimpleNamespace(load_jobs={1: order}, store_jobs={}, jobs_to_flush=None)
            steps.give_nothing(SimpleNamespace(kv_connector_metadata=orders))
        if not self.is_loaded:
            self.is_loaded = bool(steps.transfers.ended(steps.clock.now_s)[0])
        return super().step() if self.is_loaded else []


def test_the_clock_goes_on_to_the_end_of_a_copy_and_stops_at_arrivals() -> None:
    engine = LoadingEngine()
    transfers = Transfers(1, lambda _direction, size: 0.25 * size)
    times = StepTimes.of({1: STEP_S}, {1: STEP_S})
    engine.steps = StepsByTime(
        FixedClock(), times, NoAttention(), engine.scheduler, transfers=transfers,  # type: ignore[arg-type]
    )  # fmt: skip
    traffic = load_traffic("poisson:rate=20,prompt=10,output=1,spread=0,duration=2s")
    document = replay(engine, traffic, engine.steps, lambda _: None)  # type: ignore[arg-type]
    first_s, *_ = document["requests"]["begin_s"]
    assert first_s == pytest.approx(traffic.arrival_s[0] + 0.5)
    assert document["loaded_bytes"] == 2 and document["stored_bytes"] == 0
    assert all(end_s is not None for end_s in document["requests"]["end_s"])


@each(("budget", "share"), product([2, 64, 512, 2048, 8192], [0.01, 0.4, 0.5, 0.6, 1.0]))
def test_requests_of_a_measured_step_come_together_before_one_ends(
    budget: int, share: float
) -> None:
    size = max(1, int(budget * share))
    left, running, most_steps = size * prompt_tokens(size, budget), 0, 0
    while running < size:
        taken = min(left, budget - running)
        left -= taken
        running = size - -(-left // prompt_tokens(size, budget))
        most_steps += 1
    assert most_steps < 64 - 4
