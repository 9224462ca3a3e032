"""Draws requests: Poisson arrivals, bursts, sessions with growing contexts, closed loops.

Every function takes a frozen record of its numbers and gives Traffic; the same record gives the
same requests. Lengths are lognormal around their median with `spread` as the standard deviation of
the logarithm, and cut at `most_prompt` and `most_output`; a spread of 0 makes all alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ullage.ground.errors import SpecError
from ullage.operate.serve.traffic.traffic import Columns, Traffic

MAX_REQUESTS: Final = 5_000_000
SESSION_BLOCK_TOKENS: Final = 64
"""Tokens of a block of a session's prompt: what two turns share is whole blocks."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """The lengths of prompts and answers.

    Attributes:
        prompt, output: medians, in tokens.
        prompt_spread, output_spread: standard deviations of the logarithms; 0: all alike.
        most_prompt, most_output: no length is above; None: no limit.
    """

    prompt: int
    output: int
    prompt_spread: float = 0.0
    output_spread: float = 0.0
    most_prompt: int | None = None
    most_output: int | None = None

    def draw(self, random: np.random.Generator, number: int) -> tuple[Columns, Columns]:
        """Tokens of the prompts and of the answers (number,)."""
        return (
            _draw(random, number, self.prompt, self.prompt_spread, self.most_prompt),
            _draw(random, number, self.output, self.output_spread, self.most_output),
        )


@dataclass(frozen=True, slots=True)
class Poisson:
    """Requests that come independently of one another, `rate` a second on average."""

    rate: float
    duration_s: float
    lengths: Lengths
    seed: int = 0
    name: str = "poisson"

    def traffic(self, source: str) -> Traffic:
        """The requests."""
        random = np.random.default_rng(self.seed)
        arrivals = _poisson(source, random, self.rate, self.duration_s)
        prompts, outputs = self.lengths.draw(random, len(arrivals))
        return Traffic.of(source, arrivals, prompts, outputs, class_names=self.name)


@dataclass(frozen=True, slots=True)
class Bursts:
    """Poisson arrivals in bursts: `on_s` with all requests, `off_s` without any; `rate` is the mean
    over both.
    """

    rate: float
    duration_s: float
    on_s: float
    off_s: float
    lengths: Lengths
    seed: int = 0
    name: str = "bursts"

    def traffic(self, source: str) -> Traffic:
        """The requests."""
        random = np.random.default_rng(self.seed)
        period_s = self.on_s + self.off_s
        busy_s = self.duration_s // period_s * self.on_s
        busy_s += min(self.duration_s % period_s, self.on_s)
        arrivals = _poisson(source, random, self.rate * period_s / self.on_s, busy_s)
        arrivals = arrivals + np.floor(arrivals / self.on_s) * self.off_s
        prompts, outputs = self.lengths.draw(random, len(arrivals))
        return Traffic.of(source, arrivals, prompts, outputs, class_names=self.name)


@dataclass(frozen=True, slots=True)
class Sessions:
    """Conversations: each turn's prompt is the turn before with its answer, and new tokens.

    `rate` sessions a second begin, each with `turns` turns, `think_s` apart on average
    (exponential). The first `system` tokens are the same in all sessions. Of the turn before, a
    prompt shares the blocks of the prompt; those with the answer are new, because what a server
    generates is not known.
    """

    rate: float
    duration_s: float
    turns: int
    think_s: float
    lengths: Lengths
    system: int = 0
    seed: int = 0
    name: str = "sessions"

    def traffic(self, source: str) -> Traffic:
        """The requests."""
        random = np.random.default_rng(self.seed)
        begins = _poisson(source, random, self.rate, self.duration_s)
        _check_number(source, len(begins) * self.turns)
        drawn = _Conversations(self.system)
        for begin_s in begins:
            pauses = random.exponential(self.think_s, self.turns - 1)
            times = begin_s + np.concatenate([[0.0], np.cumsum(pauses)])
            prompts, outputs = self.lengths.draw(random, self.turns)
            drawn.add(times.tolist(), prompts.tolist(), outputs.tolist())
        return Traffic.of(
            source, drawn.times_s, drawn.prompts, drawn.outputs, class_names=self.name,
            blocks=drawn.blocks, block_tokens=SESSION_BLOCK_TOKENS,
        )  # fmt: skip


class _Conversations:
    """The turns of all sessions so far."""

    def __init__(self, system: int) -> None:
        self.system = system
        self.times_s: list[float] = []
        self.prompts: list[int] = []
        self.outputs: list[int] = []
        self.blocks: list[list[int]] = []
        self.num_blocks = 0

    def add(self, times_s: Sequence[float], news: Sequence[int], answers: Sequence[int]) -> None:
        """The turns of one session."""
        shared = self.system // SESSION_BLOCK_TOKENS
        self.num_blocks = max(self.num_blocks, shared)
        context, blocks = self.system, list(range(shared))
        for time_s, new, answer in zip(times_s, news, answers, strict=True):
            prompt = context + new
            fresh = prompt // SESSION_BLOCK_TOKENS - len(blocks)
            blocks = blocks + list(range(self.num_blocks, self.num_blocks + fresh))
            self.num_blocks += max(fresh, 0)
            self.times_s.append(time_s)
            self.prompts.append(prompt)
            self.outputs.append(answer)
            self.blocks.append(blocks)
            context = prompt + answer


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`users` requests at once: when one has its answer, the next is sent.

    `think_s` after an answer its user sends the next request. Staggered, the answers of the users'
    first requests are from one token to their length, so that the next ones do not come all at the
    same moment.
    """

    users: int
    requests: int
    lengths: Lengths
    is_staggered: bool = False
    seed: int = 0
    name: str = "closed"
    think_s: float = 0.0

    def traffic(self, source: str) -> Traffic:
        """The requests, all at 0."""
        _check_number(source, self.requests)
        random = np.random.default_rng(self.seed)
        prompts, outputs = self.lengths.draw(random, self.requests)
        if self.is_staggered:
            first = outputs[: self.users]
            outputs[: self.users] = -(-first * np.arange(1, len(first) + 1) // len(first))
        return Traffic.of(
            source, np.zeros(self.requests), prompts, outputs, class_names=self.name,
            num_users=self.users, think_s=self.think_s,
        )  # fmt: skip


def _draw(
    random: np.random.Generator, number: int, median: int, spread: float, most: int | None
) -> Columns:
    lengths = median * np.exp(spread * random.standard_normal(number))
    top = float(2**31 if most is None else most)
    whole: Columns = np.clip(np.rint(np.minimum(lengths, top)), 1, top).astype(np.int64)
    return whole


def _poisson(
    source: str, random: np.random.Generator, rate: float, duration_s: float
) -> npt.NDArray[np.float64]:
    expected = rate * duration_s
    _check_number(source, expected)
    # As many as six standard deviations above what is expected reach the end but once in 10^9.
    number = math.ceil(expected + 6 * math.sqrt(expected) + 10)
    arrivals = np.cumsum(random.exponential(1 / rate, number))
    return arrivals[arrivals < duration_s]


def _check_number(source: str, number: float) -> None:
    if number > MAX_REQUESTS:
        raise SpecError(
            f"{source}: {number:,.0f} requests; expected at most {MAX_REQUESTS:,}; take a shorter "
            "duration or a lower rate"
        )
