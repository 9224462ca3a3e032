"""What is to be decided: a treatment for each block, of which each costs time and keeps memory.

    problem = make_problem(profiles, seconds)
    problem.peak_bytes(choice), problem.extra_s(choice)     # choice: for each block its treatment

Treatment 0 leaves a block as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ullage.plan.costs.profile import Profile, Stretch
from ullage.trace.model import Int64Array

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Problem:
    """N blocks, K treatments, W stretches.

    Attributes:
        kept_bytes: (N, K) what a block keeps between its forward and its backward.
        extra_s: (N, K) how much longer a step takes than with the block as it is.
        held: (W, N) 1 where a stretch lies between a block's forward and its backward, else 0.
        own: (W,) the block at work in a stretch; -1: none.
        rest_bytes: (W, K) what else a stretch takes at most, by the treatment of its own block.
    """

    kept_bytes: Int64Array
    extra_s: FloatArray
    held: FloatArray
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
        """(W,) the most that each stretch takes."""
        kept = self.kept_bytes[np.arange(self.num_blocks), choice]
        own = np.append(choice, 0)[self.own]
        rest = self.rest_bytes[np.arange(len(self.own)), own]
        return np.asarray(rest + self.held @ kept, dtype=np.int64)

    def peak_bytes(self, choice: Int64Array) -> int:
        """The most that is allocated."""
        return int(self.levels(choice).max(initial=0))

    def time_s(self, choice: Int64Array) -> float:
        """How much longer a step takes than with every block as it is."""
        return float(self.extra_s[np.arange(self.num_blocks), choice].sum())


def make_problem(profiles: Sequence[Profile], seconds: Sequence[FloatArray]) -> Problem:
    """The problem of runs in which all blocks were treated alike.

    Args:
        profiles: of each treatment, that of the program as it is first.
        seconds: (N,) what each block takes of a step, likewise.
    """
    base = profiles[0]
    stretches = list(base.rest_bytes)
    rest = np.array(
        [[_rest(profile, base, stretch) for profile in profiles] for stretch in stretches],
        dtype=np.int64,
    ).reshape(len(stretches), len(profiles))
    held = np.array([base.held[stretch] for stretch in stretches], dtype=np.float64)
    return Problem(
        kept_bytes=np.stack([profile.kept_bytes for profile in profiles], axis=1),
        extra_s=np.stack([second - seconds[0] for second in seconds], axis=1),
        held=held.reshape(len(stretches), len(base.kept_bytes)),
        own=np.array([stretch.own for stretch in stretches], dtype=np.int64),
        rest_bytes=rest,
    )


def _rest(profile: Profile, base: Profile, stretch: Stretch) -> int:
    """The rest of a stretch; between blocks it is that of the program as it is."""
    return profile.rest_bytes.get(stretch, 0) if stretch.own >= 0 else base.rest_bytes[stretch]
