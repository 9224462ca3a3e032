"""Builders: problems of a chain of blocks, forward and then backward."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ullage.search.solver.problem import Problem

MIB = 2**20


def build_chain(
    kept_mib: list[list[int]],
    extra_ms: list[list[float]],
    *,
    head_mib: int = 100,
    own_mib: int = 50,
) -> Problem:
    """Blocks of which each holds what it keeps until its backward, in which it takes `own_mib` more
    and all that it keeps as it is; between forward and backward there is a head.
    """
    kept = np.array(kept_mib, dtype=np.int64) * MIB
    num, kinds = kept.shape
    liveness, own, rest = [np.ones(num)], [-1], [np.full(kinds, head_mib * MIB)]
    for block in range(num):
        liveness.append((np.arange(num) < block).astype(np.float64))
        own.append(block)
        rest.append(np.full(kinds, own_mib * MIB + kept[block, 0]))
    return Problem(
        kept,
        np.array(extra_ms, dtype=np.float64) / 1e3,
        np.array(liveness),
        np.array(own, dtype=np.int64),
        np.array(rest, dtype=np.int64),
    )


def build_random(seed: int, num: int, kinds: int) -> Problem:
    """A chain of unlike blocks; a treatment that keeps less takes longer."""
    random = np.random.default_rng(seed)
    kept = np.sort(random.integers(5, 200, (num, kinds)), axis=1)[:, ::-1]
    extra = np.sort(random.uniform(0.1, 5.0, (num, kinds)), axis=1)
    extra[:, 0] = 0.0
    return build_chain(kept.tolist(), extra.tolist(), head_mib=int(random.integers(1, 400)))


@pytest.fixture
def make_chain() -> Callable[..., Problem]:
    """make_chain([[100, 10]] * 4, [[0.0, 1.0]] * 4): MiB kept, ms more, by block and treatment."""
    return build_chain


@pytest.fixture
def make_random() -> Callable[..., Problem]:
    """make_random(seed, num=6, kinds=3)"""
    return build_random
