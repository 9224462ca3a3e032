"""Traffic in the shapes of published traces; no trace is read.

- chat: Azure LLM 2023 conversation (prompt p50 1,020, p99 4,142; answer 129, 601).
- code: Azure LLM 2023 code (1,469, 7,436; 13, 252).
- sessions: Mooncake's conversations (prompt p50 6.9k, answer p50 350), with contexts that grow by
  each turn, and a system prompt that all share.
- documents: a hog: bursts of prompts of 8k to 24k tokens.

The two Azure shapes are lognormals through the published median and 99th percentile.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from ullage.operate.front.policy.request import PREFIX_TOKENS

TENANTS = ("chat", "code", "sessions", "documents")
SHARED_TOKENS = 512
LONGEST_PROMPT = 24_000
# By tenant: seconds to the first token that a user accepts.
FIRST_TOKEN_S = {"chat": 3.0, "code": 3.0, "sessions": 6.0, "documents": 20.0}
MAX_TOKENS = {"chat": 1024, "code": 512, "sessions": 1024, "documents": 1024}
# Requests a second at load 1; of documents bursts of 6 a minute, of sessions beginnings.
RATES = {"chat": 6.0, "code": 4.0, "sessions": 0.35, "documents": 0.12}
BURST = 6
TURNS = 6
Z99 = 2.3263


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of the traffic: what it declares, and how long its answer really is."""

    id: int
    tenant: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[int, ...]

    @property
    def max_tokens(self) -> int:
        """What its client declares."""
        return MAX_TOKENS[self.tenant]


def make_traffic(load: float, duration_s: float, seed: int = 7) -> list[Arrival]:
    """All requests of so many seconds, by arrival."""
    generator = random.Random(seed)
    rows = [
        *_independent(generator, "chat", load, duration_s, (1020, 4142), (129, 601)),
        *_independent(generator, "code", load, duration_s, (1469, 7436), (13, 252)),
        *_sessions(generator, load, duration_s),
        *_documents(generator, load, duration_s),
    ]
    rows.sort(key=lambda row: row.arrival_s)
    return [
        Arrival(number, row.tenant, row.arrival_s, row.prompt_tokens, row.output_tokens, row.prefix)
        for number, row in enumerate(rows)
        if row.arrival_s < duration_s
    ]


def _draw(generator: random.Random, median: float, p99: float, most: int) -> int:
    spread = math.log(p99 / median) / Z99
    return max(1, min(most, round(generator.lognormvariate(math.log(median), spread))))


def _poisson(generator: random.Random, rate: float, duration_s: float) -> Iterator[float]:
    now_s = generator.expovariate(rate)
    while now_s < duration_s:
        yield now_s
        now_s += generator.expovariate(rate)


def _own_prefix(generator: random.Random, tokens: int, before: tuple[int, ...]) -> tuple[int, ...]:
    """Hashes of a prompt of so many tokens that begins as `before` does."""
    count = tokens // PREFIX_TOKENS
    rest = tuple(generator.getrandbits(60) for _ in range(max(0, count - len(before))))
    return (*before[:count], *rest)


def _independent(
    generator: random.Random, tenant: str, load: float, duration_s: float,
    prompt: tuple[int, int], answer: tuple[int, int],
) -> Iterator[Arrival]:  # fmt: skip
    for arrival_s in _poisson(generator, load * RATES[tenant], duration_s):
        tokens = _draw(generator, *prompt, LONGEST_PROMPT)
        output = _draw(generator, *answer, MAX_TOKENS[tenant])
        yield Arrival(0, tenant, arrival_s, tokens, output, _own_prefix(generator, tokens, ()))


def _sessions(generator: random.Random, load: float, duration_s: float) -> Iterator[Arrival]:
    shared = tuple(range(1, 1 + SHARED_TOKENS // PREFIX_TOKENS))
    for beginning_s in _poisson(generator, load * RATES["sessions"], duration_s):
        now_s, tokens, prefix = beginning_s, _draw(generator, 4000, 16000, 18000), shared
        for _ in range(TURNS):
            prefix = _own_prefix(generator, tokens, prefix)
            output = _draw(generator, 350, 900, MAX_TOKENS["sessions"])
            yield Arrival(0, "sessions", now_s, tokens, output, prefix)
            now_s += 20.0 + generator.expovariate(1 / 20.0)
            tokens = min(LONGEST_PROMPT, tokens + output + _draw(generator, 400, 2000, 4000))


def _documents(generator: random.Random, load: float, duration_s: float) -> Iterator[Arrival]:
    for burst_s in _poisson(generator, load * RATES["documents"], duration_s):
        for _ in range(BURST):
            tokens = generator.randrange(8000, LONGEST_PROMPT)
            output = _draw(generator, 350, 900, MAX_TOKENS["documents"])
            prefix = _own_prefix(generator, tokens, ())
            yield Arrival(0, "documents", burst_s + generator.random(), tokens, output, prefix)
