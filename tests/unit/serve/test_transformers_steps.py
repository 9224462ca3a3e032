"""transformers' steps by time, and the traffic that is sent to its manager: without the library."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ullage.facts.gpus import find_gpu
from ullage.ground.errors import SpecError
from ullage.operate.serve.outcome import read_outcome
from ullage.operate.serve.run import check_command
from ullage.operate.serve.step_times import StepTimes
from ullage.operate.serve.traffic import load_traffic
from ullage.operate.serve.transformers import continuous
from ullage.operate.serve.transformers.read_times import ReadTimes
from ullage.operate.serve.transformers.sender import send
from ullage.operate.serve.transformers.timed_steps import StepsByTime

READS = ReadTimes(find_gpu("h100-80gb"), 32, 32, 8, 128)
ENGINE = {
    "name": "transformers", "version": "0", "weights_bytes": 1, "peak_activation_bytes": 1,
    "kv_cache_bytes": 1, "num_blocks": 1, "block_tokens": 1, "kv_cache_tokens": 1,
    "max_concurrency": 1.0, "device_used_bytes": 1, "device_bytes": 1, "utilization_frac": 0.9,
    "max_model_len": 100, "max_num_seqs": 1, "max_num_batched_tokens": 1, "is_async": False,
    "has_prefix_caching": True, "has_graphs": False, "tensor_parallel": 1, "ignored": [],
}  # fmt: skip


class Status(Enum):
    PENDING = auto()
    DECODING = auto()
    FINISHED = auto()


@dataclass
class State:
    """What the manager keeps of a request."""

    request_id: str
    left: int
    output: int
    position_offset: int = 0
    status: Status = Status.PENDING
    tokens_to_process: list[int] = field(default_factory=list)


@dataclass
class Future:
    state: State
    query_length: int
    has_new_token: bool = True


class Clock:
    """The traffic's clock, without those of the machine being changed."""

    now_s = device_free_s = 0.0


class Scheduler:
    def __init__(self) -> None:
        self.active_requests: dict[str, State] = {}


class Manager:
    """As Engine, with a scheduler that takes up to `most` requests and, in prompts, all tokens."""

    def __init__(self, most: int = 2) -> None:
        self.most = most
        self.scheduler = Scheduler()
        self.waiting: deque[State] = deque()
        self.steps: StepsByTime | None = None
        self.cached: dict[str, int] = {}
        self.preempted: dict[str, int] = dict.fromkeys(map(str, range(1000)), 0)

    def use_times(self, steps: StepsByTime) -> None:
        self.steps = steps

    def add(self, name: str, prompt: list[int], output: int) -> None:
        if len(prompt) > 100:
            raise ValueError("too long")
        self.waiting.append(State(name, len(prompt), output))

    def prompt_of(self, number: int, tokens: int) -> list[int]:
        return [number] * tokens

    @property
    def usage_frac(self) -> float:
        return len(self.scheduler.active_requests) / self.most

    def step(self) -> bool:
        active = self.scheduler.active_requests
        while self.waiting and len(active) < self.most:
            state = self.waiting.popleft()
            active[state.request_id] = state
            state.status = Status.DECODING
        if not active:
            return False
        assert self.steps is not None
        futures = [Future(state, state.left or 1) for state in active.values()]
        queries = sum(future.query_length for future in futures)
        read = sum(future.state.position_offset for future in futures)
        self.steps.prepare_batch_tensors(futures, None, num_q_tokens=queries, max_kv_read=read)
        given, tokens, _ = self.steps.prepare_batch_update()
        assert len(tokens) == len(given)
        for future in given:
            future.state.left = 0
            future.state.output -= 1
            if future.state.output == 0:
                del active[future.state.request_id]
        return True


def run(traffic: str, manager: Manager | None = None) -> Any:
    times = StepTimes.of({1: 0.01, 1000: 0.01}, {1: 0.01, 1000: 0.01})
    steps = StepsByTime(Clock(), times, READS, None)  # type: ignore[arg-type]
    engine: Any = manager or Manager()
    loaded = load_traffic(traffic)
    document = send(engine, loaded, steps, lambda _: None)
    document |= {"engine": ENGINE, "step_times": {}, "attention_left_out": [], "real_s": {}}
    return read_outcome(document, loaded), steps


def test_every_request_gets_its_tokens_in_order() -> None:
    outcome, steps = run("poisson:rate=20,prompt=50,output=7,duration=3s,seed=1")
    assert outcome.is_answered.all()
    assert (outcome.output_tokens == 7).all()
    assert (outcome.arrival_s <= outcome.begin_s).all()
    assert (outcome.begin_s < outcome.first_token_s).all()
    assert (outcome.first_token_s < outcome.end_s).all()
    assert outcome.num_steps == steps.num_steps
    assert outcome.duration_s >= outcome.device_s


def test_a_user_thinks_before_the_next_request() -> None:
    outcome, _ = run("closed:users=1,requests=3,prompt=10,output=5,think=2")
    assert outcome.arrival_s[1:] - outcome.end_s[:-1] == pytest.approx([2, 2])


def test_a_request_alone_takes_a_step_for_each_token() -> None:
    outcome, steps = run("closed:users=1,requests=1,prompt=10,output=5")
    assert outcome.num_steps == 5
    reads = sum(READS.seconds(1, 10 + number) for number in range(4))
    assert outcome.end_s[0] == pytest.approx(5 * 0.01 + reads)
    assert steps.attention_s == pytest.approx(reads)


def test_users_of_a_closed_loop_wait_for_their_answers() -> None:
    outcome, _ = run("closed:users=2,requests=6,prompt=10,output=3")
    assert outcome.is_answered.all()
    ends = np.sort(outcome.end_s)
    assert (outcome.arrival_s[2:] >= ends[:-2] - 1e-9).all()


def test_what_the_engine_refuses_is_not_stuck() -> None:
    outcome, _ = run("closed:users=1,requests=2,prompt=200,output=3")
    assert set(outcome.rejected) == {0, 1}
    assert outcome.num_stuck == 0


def test_an_engine_that_ends_leaves_requests_without_an_answer() -> None:
    class Ending(Manager):
        def step(self) -> bool:
            if self.waiting:
                raise RuntimeError("No requests can be scheduled")
            return super().step()

    outcome, _ = run("closed:users=1,requests=2,prompt=20,output=3", Ending())
    assert outcome.num_stuck == 2


def test_reads_grow_with_the_queries_and_with_what_is_read() -> None:
    assert READS.seconds(64, 0) == 0.0
    assert READS.seconds(1, 1000) < READS.seconds(1, 100_000) < READS.seconds(512, 100_000)


def test_only_known_servers_are_started() -> None:
    command = ["transformers", "serve", "gpt2", "--continuous-batching"]
    assert check_command(command) == "gpt2"
    with pytest.raises(SpecError, match="one request at a time without --continuous-batching"):
        check_command(command[:3])
    with pytest.raises(SpecError, match="SGLang is not served here"):
        check_command(["python", "-m", "sglang.launch_server", "--model-path", "gpt2"])
    with pytest.raises(SpecError, match="expected a server's command"):
        check_command(["ollama", "serve"])


class Measured:
    """As Engine; a step of a prompt takes a millisecond and a microsecond for each token, and the
    first of a size 50 ms more.
    """

    longest = 1000

    def __init__(self) -> None:
        self.cache = SimpleNamespace(max_batch_tokens=6)
        self.processor = SimpleNamespace(reset=self.reset)
        self.now_s = 0.0
        self.seen: set[int] = set()
        self.left: list[int] = []
        self.prompts: list[tuple[int, ...]] = []
        self.num_resets = 0

    def prompt_of(self, number: int, tokens: int) -> list[int]:
        return [number] * tokens

    def add(self, _name: str, prompt: list[int], output: int) -> None:
        assert output == 1
        self.left.append(len(prompt))
        self.prompts.append(tuple(prompt))

    def step(self) -> bool:
        if not self.left:
            return False
        size = self.left.pop()
        self.now_s += 1e-3 + 1e-6 * size + 0.05 * (size not in self.seen)
        self.seen.add(size)
        return True

    def mark(self) -> float:
        return self.now_s

    def reset(self) -> None:
        self.num_resets += 1


def test_the_second_step_of_each_size_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuous, "seconds_between", lambda begin, end: round(end - begin, 6))
    engine: Any = Measured()
    times = continuous.measure_steps(engine, engine)
    assert times.prefill == ((1, 0.001001), (2, 0.001002), (4, 0.001004), (6, 0.001006))
    assert times.decode == times.prefill
    assert len(set(engine.prompts)) == 8  # none is in the cache by an earlier one
    assert engine.num_resets == 1
