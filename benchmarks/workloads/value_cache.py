"""Compares `ullage.ValueCache` with LRU, LFU and TinyLFU on made-up traces, and writes a page.

    python -m benchmarks.workloads.value_cache       # needs cachetools beside numpy

The traces are made up, in the published shape of prompts: popularity by Zipf's law, sessions whose
contexts grow, half of the popular prompts replaced half-way, and lengths as in Azure's public trace
of 2023 (medians of 1,020 tokens in and 129 out). Every policy sees the same requests, sizes and
seconds, and has the same budget in bytes.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import cachetools
import numpy as np

from benchmarks.provenance import made_by
from benchmarks.results import publish
from ullage.act.caches.value_cache import Frequency, ValueCache

SHARES: Final = (0.01, 0.03, 0.1, 0.3)
NUM_REQUESTS: Final = 60_000
SEED: Final = 5
# Seconds of a token that is read and of one that is written, on one GPU with an 8B model; seconds
# of a batch's passage that is embedded. They weigh the requests; the page says so.
READ_S, WRITE_S = 1 / 20_000, 1 / 40
EMBED_S: Final = 1 / 50_000


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests, and of each key its bytes and seconds."""

    name: str
    keys: list[int]
    nbytes: list[int]
    seconds: list[float]

    @property
    def all_bytes(self) -> int:
        """Of all different keys."""
        return sum(self.nbytes[key] for key in set(self.keys))


class Policy(Protocol):
    """A cache with a budget."""

    def ask(self, key: int, nbytes: int, seconds: float) -> bool:
        """Whether it is there; if not, it may come in."""
        ...

    @property
    def held_bytes(self) -> int:
        """The bytes of its entries."""
        ...


class Value:
    """ullage's own."""

    def __init__(self, budget: int) -> None:
        self._cache: ValueCache[int, str] = ValueCache(budget)

    def ask(self, key: int, nbytes: int, seconds: float) -> bool:
        """See Policy."""
        if self._cache.get(key):
            return True
        self._cache.put(key, "answer", nbytes=nbytes, seconds=seconds)
        return False

    @property
    def held_bytes(self) -> int:
        """See Policy."""
        return self._cache.counts.bytes


class Library:
    """A cache of cachetools: LRUCache or LFUCache."""

    def __init__(self, kind: type[cachetools.Cache], budget: int) -> None:
        self._cache, self._budget = kind(budget, getsizeof=lambda size: size), budget

    def ask(self, key: int, nbytes: int, seconds: float) -> bool:
        """See Policy."""
        del seconds
        if self._cache.get(key) is not None:
            return True
        if nbytes <= self._budget:
            self._cache[key] = nbytes
        return False

    @property
    def held_bytes(self) -> int:
        """See Policy."""
        return int(self._cache.currsize)


class TinyLfu:
    """W-TinyLFU by bytes: a window of 1 % as LRU; what leaves it is admitted to the main part, LRU
    too, where it was asked for more often than each that would have to go.

    No package of PyPI has it with a budget in bytes. Source: doi:10.1145/3149371, section 4.
    """

    def __init__(self, budget: int) -> None:
        self._window: OrderedDict[int, int] = OrderedDict()
        self._main: OrderedDict[int, int] = OrderedDict()
        self._budgets = (max(1, budget // 100), budget - max(1, budget // 100))
        self._held = [0, 0]
        self._frequency = Frequency(1 << 16)

    def ask(self, key: int, nbytes: int, seconds: float) -> bool:
        """See Policy."""
        del seconds
        self._frequency.add(key)
        for part in (self._window, self._main):
            if key in part:
                part.move_to_end(key)
                return True
        if nbytes > self._budgets[0]:
            self._admit(key, nbytes)
            return False
        self._window[key] = nbytes
        self._held[0] += nbytes
        while self._held[0] > self._budgets[0]:
            old, size = self._window.popitem(last=False)
            self._held[0] -= size
            self._admit(old, size)
        return False

    def _admit(self, key: int, nbytes: int) -> None:
        if nbytes > self._budgets[1]:
            return
        victims, free = [], self._budgets[1] - self._held[1]
        for old, size in self._main.items():
            if free >= nbytes:
                break
            if self._frequency.of(old) >= self._frequency.of(key):
                return
            victims.append(old)
            free += size
        for old in victims:
            self._held[1] -= self._main.pop(old)
        self._main[key] = nbytes
        self._held[1] += nbytes

    @property
    def held_bytes(self) -> int:
        """See Policy."""
        return sum(self._held)


POLICIES: Final[dict[str, Callable[[int], Policy]]] = {
    "LRU (cachetools)": lambda budget: Library(cachetools.LRUCache, budget),
    "LFU (cachetools)": lambda budget: Library(cachetools.LFUCache, budget),
    "W-TinyLFU": TinyLfu,
    "ValueCache": Value,
}


def zipf(random: np.random.Generator, keys: int, number: int, power: float) -> np.ndarray:
    """Numbers of keys; half-way each popular key gives way to another."""
    weights = 1 / np.arange(1, keys + 1) ** power
    drawn = random.choice(keys, number, p=weights / weights.sum())
    late = np.arange(number) >= number // 2
    moved = (drawn + keys // 2) % keys
    return np.where(late & (drawn % 2 == 0), moved, drawn)


def answers() -> Trace:
    """Answers to prompts: a few bytes of text; seconds of reading the prompt and writing it."""
    random = np.random.default_rng(SEED)
    keys = 30_000
    read = np.clip(random.lognormal(np.log(1020), 1.0, keys), 16, 16_384)
    written = np.clip(random.lognormal(np.log(129), 0.9, keys), 1, 2_048)
    seconds = read * READ_S + written * WRITE_S
    return Trace(
        "answers of prompts", zipf(random, keys, NUM_REQUESTS, 0.9).tolist(),
        (200 + 5 * written + 5 * read).astype(int).tolist(), seconds.tolist(),
    )  # fmt: skip


def embeddings() -> Trace:
    """Embeddings of passages, one vector for each 256 tokens; seconds by tokens."""
    random = np.random.default_rng(SEED + 1)
    keys = 60_000
    tokens = np.clip(random.lognormal(np.log(400), 1.2, keys), 8, 65_536)
    vectors = np.ceil(tokens / 256)
    return Trace(
        "embeddings of passages", zipf(random, keys, NUM_REQUESTS, 0.8).tolist(),
        (vectors * 1024 * 4).astype(int).tolist(), (0.004 + tokens * EMBED_S).tolist(),
    )  # fmt: skip


def sessions() -> Trace:
    """Contexts of sessions that grow from turn to turn, as keys and values of 128 KiB a token; the
    seconds are those of reading them, which grow faster than the length.
    """
    random = np.random.default_rng(SEED + 2)
    keys: list[int] = []
    tokens: list[float] = []
    for opening in zipf(random, 4_000, NUM_REQUESTS // 6, 1.0).tolist():
        # Every session of an opening shares its first context: a system prompt with a document.
        while len(tokens) <= opening:
            tokens.append(float(np.clip(random.lognormal(np.log(3_000), 1.1), 64, 100_000)))
        keys.append(opening)
    own: list[int] = []
    place = max(4_000, len(tokens))
    tokens += [1_000.0] * (place - len(tokens))
    for opening in keys:
        own.append(opening)
        length = tokens[opening]
        for _ in range(int(random.geometric(0.35)) - 1):
            length += float(random.lognormal(np.log(400), 0.8))
            tokens.append(length)
            own += [len(tokens) - 1] * (1 + int(random.random() < 0.5))
    size = np.array(tokens)
    seconds = size * READ_S + (size / 100_000) ** 2 * 5
    return Trace(
        "contexts of sessions", own, (size * 131_072).astype(int).tolist(), seconds.tolist()
    )


def play(trace: Trace, policy: Policy, budget: int) -> tuple[float, float, float]:
    """The share of hits, the share of seconds saved, and microseconds a request.

    Raises:
        SystemExit: the entries exceed the budget.
    """
    hits, saved, most = 0, 0.0, 0
    begin = time.process_time()
    for key in trace.keys:
        if policy.ask(key, trace.nbytes[key], trace.seconds[key]):
            hits += 1
            saved += trace.seconds[key]
        most = max(most, policy.held_bytes)
    each_us = (time.process_time() - begin) / len(trace.keys) * 1e6
    if most > budget:
        raise SystemExit(f"{trace.name}: {most} bytes are held, the budget is {budget}")
    return hits / len(trace.keys), saved / sum(trace.seconds[key] for key in trace.keys), each_us


def part(trace: Trace) -> Iterator[str]:
    """The section of a trace."""
    yield (
        f"## {trace.name.capitalize()}\n\n{len(trace.keys):,} requests of "
        f"{len(set(trace.keys)):,} keys, {trace.all_bytes / 1e9:,.2f} GB in all. "
        "Seconds saved, of all; in brackets the hits."
    )
    rows = [
        "| budget, of all bytes | " + " | ".join(POLICIES) + " |",
        "|--:|" + "--:|" * len(POLICIES),
    ]
    costs: dict[str, list[float]] = {name: [] for name in POLICIES}
    for share in SHARES:
        budget = int(share * trace.all_bytes)
        cells = []
        for name, make in POLICIES.items():
            hits, saved, each_us = play(trace, make(budget), budget)
            costs[name].append(each_us)
            cells.append(f"{saved:.1%} ({hits:.1%})")
        rows.append(f"| {share:.0%} | " + " | ".join(cells) + " |")
        print(rows[-1], flush=True)
    yield "\n".join(rows)
    times = ", ".join(f"{name} {sum(row) / len(row):.1f}" for name, row in costs.items())
    yield f"Microseconds a request on this machine: {times}."


def main() -> None:
    """Writes the page."""
    parts = [
        "# A cache by value",
        made_by("benchmarks.workloads.value_cache"),
        INTRODUCTION,
        *(text for make in (answers, embeddings, sessions) for text in part(make())),
    ]
    publish("value-cache", "\n\n".join(parts) + "\n")


INTRODUCTION: Final = f"""[`ullage.ValueCache`](../guide/value-cache.md) beside LRU and LFU of
cachetools {cachetools.__version__} and W-TinyLFU (written for this benchmark, as no
package has it with a budget in bytes). The traces are made up: popularity by Zipf's law, half of
the popular keys replaced half-way, sessions of a geometric number of turns whose contexts grow,
lognormal lengths with medians of 1,020 tokens read and 129 written as in Azure's public trace of
2023. A token read takes {READ_S * 1e6:.0f} us, a token written {WRITE_S * 1e3:.0f} ms, a token
embedded {EMBED_S * 1e6:.0f} us: assumed. The benchmark stops where the bytes held exceed the
budget at any request."""


if __name__ == "__main__":
    main()
