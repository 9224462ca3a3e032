"""How long a step takes but for its attention: measured on the phantom, by size.

    times = StepTimes(decode={1: 0.0065, 2: 0.0066}, prefill={2: 0.007, 8192: 0.21})
    times.seconds(1, is_decode=True)

Between two sizes it is linear; beyond the last one it goes on like the line of the last two.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple


class Launches(NamedTuple):
    """The host's launches for a step: kernels, copies and graphs.

    Attributes:
        number: of all.
        num_before_graph: those before the first graph, which has most of the step; 0: there is no
            graph, and the work is spread over all.
    """

    number: int
    num_before_graph: int = 0


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of steps.

    Attributes:
        decode: by the number of requests, each of which gets one token; ascending.
        prefill: by the number of tokens, where some are of prompts; ascending.
        decode_launches, prefill_launches: by the same sizes; empty: they are not known.
    """

    decode: tuple[tuple[int, float], ...]
    prefill: tuple[tuple[int, float], ...]
    decode_launches: tuple[tuple[int, Launches], ...] = ()
    prefill_launches: tuple[tuple[int, Launches], ...] = ()

    @classmethod
    def of(
        cls,
        decode: Mapping[int, float],
        prefill: Mapping[int, float],
        decode_launches: Mapping[int, Launches] = MappingProxyType({}),
        prefill_launches: Mapping[int, Launches] = MappingProxyType({}),
    ) -> StepTimes:
        """From measured sizes; each needs one or more.

        A step takes no longer than one of more tokens: a kernel may seem to have more operands than
        it has, where a structure of its arguments has bytes that are never set, and never fewer.
        """
        return cls(
            _rising(decode), _rising(prefill),
            tuple(sorted(decode_launches.items())), tuple(sorted(prefill_launches.items())),
        )  # fmt: skip

    def seconds(self, tokens: int, *, is_decode: bool) -> float:
        """The seconds of a step with this many tokens."""
        return _between(self.decode if is_decode else self.prefill, tokens)

    def launches(self, tokens: int, *, is_decode: bool) -> Launches:
        """The launches of a step with this many tokens: those of the next larger size that was
        measured, as a graph for more tokens is replayed for fewer.
        """
        counts = self.decode_launches if is_decode else self.prefill_launches
        if not counts:
            return Launches(0)
        index = bisect.bisect_left(counts, tokens, key=lambda row: row[0])
        return counts[min(index, len(counts) - 1)][1]

    @property
    def document(self) -> dict[str, Any]:
        """For JSON."""
        rows = (
            ("decode", self.decode, self.decode_launches),
            ("prefill", self.prefill, self.prefill_launches),
        )  # fmt: skip
        return {
            name: {
                "tokens": [size for size, _ in points],
                "seconds": [s for _, s in points],
                "launches": [launches.number for _, launches in counts],
                "launches_before_graph": [each.num_before_graph for _, each in counts],
            }
            for name, points, counts in rows
        }


def step_sizes(most: int) -> Iterator[int]:
    """The sizes that are measured: powers of two, from 8 to 256 the middle of two, and `most`."""
    size = 1
    while size < most:
        yield size
        if 8 <= size < 256 and size * 3 // 2 < most:
            yield size * 3 // 2
        size *= 2
    yield most


def _rising(measured: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    """By size, ascending; no time is above a later one."""
    points, lowest = [], float("inf")
    for size in sorted(measured, reverse=True):
        lowest = min(lowest, measured[size])
        points.append((size, lowest))
    return tuple(reversed(points))


def _between(points: tuple[tuple[int, float], ...], size: int) -> float:
    if len(points) == 1:
        return points[0][1]
    index = min(max(bisect.bisect_right(points, (size, float("inf"))) - 1, 0), len(points) - 2)
    (low, low_s), (high, high_s) = points[index : index + 2]
    share = max(0.0, (size - low) / (high - low))
    return max(0.0, low_s + share * (high_s - low_s))
