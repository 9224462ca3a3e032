"""Sends a class and a function of its own to spawned processes, and prints what came back."""

import multiprocessing
from dataclasses import dataclass


@dataclass
class Pair:
    """Pickled by its name in __main__."""

    first: int
    second: int


def swap(pair: Pair) -> Pair:
    """Runs in another process."""
    return Pair(pair.second, pair.first)


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(swap, [Pair(1, 2), Pair(3, 4)]))
