"""Where the search for the largest batch goes, by the memory that small batches are given here.

    python lines_of_batches.py SOURCE_OF_ULLAGE line|bent|flat

Prints one JSON object; nothing is run. A batch has two moments: one of 100 bytes and 10 more for a
sample, and one of 160 and as much more as the kind says.
"""

from __future__ import annotations

import json
import sys

import numpy as np

sys.path.insert(0, sys.argv[1])
from ullage.act.guard.batches import largest_batch
from ullage.ground.errors import GuardError

LIMIT_BYTES = 1000
SIZES = (2, 4, 8)


def memory(kind: str, size: int) -> np.ndarray:
    """The memory of a batch at both moments."""
    first, second = {
        "line": (10 * size, 2 * size), "bent": (10 * size, size**2), "flat": (0, 0),
    }[kind]  # fmt: skip
    return np.array([100.0 + first, 160.0 + second])


class Trial(largest_batch._Trial):
    """Knows the memory of each batch, without running it."""

    def __init__(self, kind: str) -> None:
        super().__init__(lambda _: None, lambda size: size)
        self.kind = kind
        self.ran: list[int] = []

    def run(self, size: int, *, is_watched: bool = True) -> bool:
        """Notes a batch."""
        self.ran.append(size)
        course = memory(self.kind, size)
        if course.max() > LIMIT_BYTES:
            self.failed_size = min(size, self.failed_size or size)
            return False
        self.peaks[size] = int(course.max())
        if is_watched:
            self.courses[size] = course
        return True


def main() -> None:
    """Looks for the largest batch of a kind."""
    trial = Trial(sys.argv[2])
    for size in SIZES:
        trial.run(size)
    try:
        found = largest_batch._climb(trial, LIMIT_BYTES, 10**6, 2, SIZES)
    except GuardError as error:
        print(json.dumps({"refused": str(error)}))
        return
    print(
        json.dumps(
            {
                "size": found.size,
                "predicted": found.predicted_size,
                "is_line": found.is_line,
                "failed": found.failed_size,
                "ran": trial.ran[len(SIZES) :],
                "text": found.text,
            }
        )
    )


if __name__ == "__main__":
    main()
