"""The optimisation problem: a treatment for each block. A treatment costs time and keeps memory.

    problem = make_problem(profiles, seconds)
    problem.peak_bytes(choice), problem.time_s(choice)     # choice: for each block its treatment

Treatment 0 leaves a block unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from ullage.log.model import Int64Array
from ullage.search.costs.profile import Profile, Stretch

FloatArray = npt.NDArray[np.float64]

TINY_S = 1e-9  # shorter times count as none


@dataclass(frozen=True, slots=True)
class Problem:
    """N blocks, K treatments, W stretches.

    Attributes:
        kept_bytes: (N, K) what a block keeps between its forward and its backward.
        extra_s: (N, K) how much longer a step takes than with the block unchanged.
        liveness: (W, N) 1 where a stretch lies between a block's forward and its backward, else 0.
        own: (W,) the block that runs in a stretch; -1: none.
        rest_bytes: (W, K) the other memory of a stretch at most, by the treatment of its own block.
    """

    kept_bytes: Int64Array
    extra_s: FloatArray
    liveness: FloatArray
    own: Int64Array
    rest_bytes: Int64Array

    @property
    def num_blocks(self) -> int:
        """N."""
        return int(self.kept_bytes.shape[0])

    @property
    def num_treatments(self) -> int:
        """K."""
        return int(self.kept_bytes.shape[1])

    def levels(self, choice: Int64Array) -> Int64Array:
        """(W,) the peak of each stretch."""
        kept_bytes = self.kept_bytes[np.arange(self.num_blocks), choice]
        own = np.append(choice, 0)[self.own]
        rest = self.rest_bytes[np.arange(len(self.own)), own]
        return np.asarray(rest + self.liveness @ kept_bytes, dtype=np.int64)

    def peak_bytes(self, choice: Int64Array) -> int:
        """The highest level of all stretches."""
        return int(self.levels(choice).max(initial=0))

    def time_s(self, choice: Int64Array) -> float:
        """The time of a step beyond that with every block unchanged."""
        return float(self.extra_s[np.arange(self.num_blocks), choice].sum())


@dataclass(frozen=True, slots=True)
class Solution:
    """A choice that fits below a limit, and a bound on how good any choice can be.

    Attributes:
        choice: for each block its treatment.
        time_s: the primal bound: how much longer a step takes than with all blocks unchanged.
        bound_s: the dual bound: no choice below the limit takes less.
        peak_bytes: the most that is allocated.
    """

    choice: Int64Array
    time_s: float
    bound_s: float
    peak_bytes: int

    @property
    def gap(self) -> float:
        """The relative optimality gap: how much faster another choice may be."""
        return (self.time_s - self.bound_s) / self.time_s if self.time_s > TINY_S else 0.0


class Failure(Enum):
    """The reason why there is no solution."""

    INFEASIBLE = "no choice fits: this is proved"
    NOT_FOUND = "the solver stopped before it found a choice that fits; there may be one"


def make_problem(profiles: Sequence[Profile], seconds: Sequence[FloatArray]) -> Problem:
    """The problem of runs in which all blocks had the same treatment.

    Args:
        profiles: of each treatment; the first is that of the unchanged program.
        seconds: (N,) the time of each block in a step, likewise for each treatment.
    """
    base = profiles[0]
    stretches = list(base.rest_bytes)
    rest = np.array(
        [[_rest(profile, base, stretch) for profile in profiles] for stretch in stretches],
        dtype=np.int64,
    ).reshape(len(stretches), len(profiles))
    liveness = np.array([base.live_blocks[stretch] for stretch in stretches], dtype=np.float64)
    return Problem(
        kept_bytes=np.stack([profile.kept_bytes for profile in profiles], axis=1),
        extra_s=np.stack([second - seconds[0] for second in seconds], axis=1),
        liveness=liveness.reshape(len(stretches), len(base.kept_bytes)),
        own=np.array([stretch.own for stretch in stretches], dtype=np.int64),
        rest_bytes=rest,
    )


def _rest(profile: Profile, base: Profile, stretch: Stretch) -> int:
    """The rest of a stretch; between blocks it is that of the unchanged program."""
    return profile.rest_bytes.get(stretch, 0) if stretch.own >= 0 else base.rest_bytes[stretch]
