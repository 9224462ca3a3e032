"""Tensors that passes without gradients carry from one to the next: keys and values, states.

A cache does not say that it is one. But what a module made in one forward pass and uses again in a
later one was kept for that; and what else the module leaves behind after a pass is of the same
kind, though no later pass has come to use it. What a model returns and is given again (an image
that is denoised step by step) is made by its last module and used by its first.
"""

from __future__ import annotations

import functools

import numpy as np

from ullage.explain.moments.course import Course, Phase
from ullage.log.blocks import Blocks, BoolArray
from ullage.log.model import Int64Array, Record


def find_carried(record: Record, blocks: Blocks, course: Course) -> BoolArray:
    """Which allocations a pass without gradients made for later ones; none in a record that does
    not say when blocks were used, or in which module.
    """
    carried = np.zeros(len(blocks), dtype=np.bool_)
    scopes = record.events.scope.astype(np.int64)
    if record.last_use is None or not len(record.events) or not record.modules:
        return carried
    event = blocks.birth
    last_use = record.last_use.astype(np.int64)[event]
    born = course.region_at(event)
    # Of the event before the use: what happened since without an allocation has no place.
    used = course.region_at(last_use - record.first_position - 1)
    is_pass = (course.phase == Phase.FORWARD) & ~course.grad
    has_module = (event >= 0) & (scopes[event] >= 0)
    is_of_pass = is_pass[born] & has_module
    may_be = np.flatnonzero(is_of_pass & is_pass[used] & (used > born))
    made_in = scopes[event[may_be]]
    used_in = _scopes_before(record, last_use[may_be])
    carried[may_be] = _are_related(record.modules, made_in, used_in)

    keepers = scopes[event[carried]]
    outlives = blocks.death >= course.end[born]
    left: BoolArray = carried | (is_of_pass & outlives & np.isin(scopes[event], keepers))
    return left


def _scopes_before(record: Record, position: Int64Array) -> Int64Array:
    """The scope of the last allocation before each position: an operation allocates its result,
    then it uses its inputs. -1 for none.
    """
    scopes = record.events.scope.astype(np.int64)
    births = np.flatnonzero(record.events.size_bytes > 0)
    row = np.searchsorted(births, position - record.first_position, side="left") - 1
    return np.where(row >= 0, scopes[births[np.maximum(row, 0)]], -1)


def _are_related(modules: tuple[str, ...], scope: Int64Array, other: Int64Array) -> BoolArray:
    """True if second scopes are one module below the outermost, or one holds the other."""

    @functools.cache
    def are_related(first: int, second: int) -> bool:
        if not (0 <= first < len(modules) and 0 <= second < len(modules)):
            return False
        a, b = modules[first], modules[second]
        return bool(a and b) and (a == b or b == _holder(a) or a == _holder(b))

    pairs = zip(scope.tolist(), other.tolist(), strict=True)
    return np.array([are_related(first, second) for first, second in pairs], dtype=np.bool_)


def _holder(path: str) -> str:
    return path.rpartition(".")[0]
