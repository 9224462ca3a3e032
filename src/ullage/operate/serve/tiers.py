"""How large the tiers of a prefix cache must be at least, from the traffic alone.

    tiers = size_tiers(traffic, token_bytes=131072)
    tiers.live_bytes, tiers.bytes_for(0.9)

Two prompts share a prefix as far as the hashes of their blocks are equal. A block that comes again
must have been kept since its last use, and with it all that was used meanwhile, where the cache
evicts what was used longest ago (LRU). So a cache of B bytes finds exactly the blocks whose reuse
distance is at most B. What requests need while they run comes on top.
Source: Mattson et al. 1970, "Evaluation techniques for storage hierarchies" (stack distances).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np
import numpy.typing as npt

from ullage.ground.protocol.plain import Mark, figure
from ullage.operate.serve.traffic import Traffic

_WINDOW_S: Final = 60.0
SHARES: Final = (0.5, 0.9, 1.0)
"""The shares of what can be found in a prefix cache."""


@dataclass(frozen=True, slots=True)
class Tiers:
    """The prefixes of some traffic.

    Attributes:
        token_bytes: of the cache for one token, on all GPUs together.
        prompt_tokens: of all requests.
        repeated_tokens: of them, those in blocks that came before.
        distinct_bytes: of all blocks that ever come.
        reused_bytes: of those that come more than once.
        live_bytes: the most at any moment of blocks that came before and will come again: no cache
            that finds them all can be smaller.
        distances_bytes: of each block that comes again, how large an LRU cache finds it; ascending.
        block_bytes: of a block.
        read_bytes_per_s: the most in a minute that is found again, if all of it is.
    """

    token_bytes: int
    prompt_tokens: Annotated[int, Mark.NO_KEY]
    repeated_tokens: Annotated[int, Mark.NO_KEY]
    distinct_bytes: int
    reused_bytes: int
    live_bytes: int
    distances_bytes: Annotated[npt.NDArray[np.int64], Mark.NO_KEY]
    block_bytes: Annotated[int, Mark.NO_KEY]
    read_bytes_per_s: float

    @figure
    def lru_bytes(self) -> Mapping[str, int]:
        """The least LRU caches that find some shares of what can be found."""
        return {f"{share:g}": self.bytes_for(share) for share in SHARES}

    @figure
    def ceiling_frac(self) -> float:
        """The share of the prompts' tokens that a cache without end would find."""
        return self.repeated_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def found_frac(self, cache_bytes: int) -> float:
        """The share of what can be found that an LRU cache of that size finds."""
        if not len(self.distances_bytes):
            return 1.0
        number = np.searchsorted(self.distances_bytes, cache_bytes, side="right")
        return float(number) / len(self.distances_bytes)

    def bytes_for(self, share: float) -> int:
        """The least LRU cache that finds that share of what can be found."""
        if not len(self.distances_bytes):
            return 0
        last = max(0, int(np.ceil(share * len(self.distances_bytes))) - 1)
        return int(self.distances_bytes[last])


def size_tiers(traffic: Traffic, token_bytes: int) -> Tiers:
    """The sizes of a traffic.

    Counts: blocks of equal hashes, of the traffic's own size (512 tokens of Mooncake's).
    Ignores: what requests add while they run, answers that come back as prompts unless their
    blocks have hashes, and the engine's smaller blocks.
    Error: none as a least, where arrivals stand for the moments of use.

    Args:
        traffic: the requests.
        token_bytes: of the cache for one token, on all GPUs together.
    """
    block_bytes = traffic.block_tokens * token_bytes
    units = traffic.block_hashes
    numbers = np.diff(traffic.block_offsets)
    times = np.repeat(traffic.arrival_s, numbers)
    _, names, counts = np.unique(units, return_inverse=True, return_counts=True)
    distances = np.sort(np.fromiter(_distances(names, len(counts)), dtype=np.int64))
    repeated = len(units) - len(counts)
    return Tiers(
        token_bytes=token_bytes,
        prompt_tokens=int(traffic.prompt_tokens.sum()),
        repeated_tokens=repeated * traffic.block_tokens,
        distinct_bytes=len(counts) * block_bytes,
        reused_bytes=int((counts > 1).sum()) * block_bytes,
        live_bytes=_most_alive(names) * block_bytes,
        distances_bytes=distances * block_bytes,
        block_bytes=block_bytes,
        read_bytes_per_s=_most_a_minute(names, times) * block_bytes / _WINDOW_S,
    )


def _distances(names: npt.NDArray[np.int64], number: int) -> Iterator[int]:
    """For each use but a block's first: the different blocks since its last use, itself too."""
    tree = [0] * (len(names) + 1)  # Fenwick: 1 at the last use of each block so far

    def add(place: int, value: int) -> None:
        place += 1
        while place < len(tree):
            tree[place] += value
            place += place & -place

    def before(place: int) -> int:
        total = 0
        while place > 0:
            total += tree[place]
            place -= place & -place
        return total

    last = [-1] * number
    alive = 0
    for place, name in enumerate(names.tolist()):
        earlier = last[name]
        if earlier >= 0:
            yield alive - before(earlier)
            add(earlier, -1)
        else:
            alive += 1
        add(place, 1)
        last[name] = place


def _most_alive(names: npt.NDArray[np.int64]) -> int:
    """The most blocks at a moment that came before and will come again."""
    if not len(names):
        return 0
    places = np.arange(len(names))
    first = np.full(int(names.max()) + 1, len(names))
    np.minimum.at(first, names, places)
    last = np.zeros(int(names.max()) + 1, dtype=np.int64)
    np.maximum.at(last, names, places)
    changes = np.zeros(len(names) + 1, dtype=np.int64)
    is_reused = last > first
    np.add.at(changes, first[is_reused] + 1, 1)
    np.add.at(changes, last[is_reused] + 1, -1)
    return int(np.cumsum(changes).max(initial=0))


def _most_a_minute(names: npt.NDArray[np.int64], times: npt.NDArray[np.float64]) -> int:
    """The most uses of blocks that came before, in a minute."""
    if not len(names):
        return 0
    _, first = np.unique(names, return_index=True)
    is_again = np.ones(len(names), dtype=np.bool_)
    is_again[first] = False
    if not is_again.any():
        return 0
    minutes = (times[is_again] // _WINDOW_S).astype(np.int64)
    return int(np.bincount(minutes).max())
