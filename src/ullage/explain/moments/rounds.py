"""Finds the loop of a program from the stacks of its allocations alone.

The search descends the stacks from the outermost frame, always into the call with the most
allocations. In a function without a loop the allocating lines occur in ascending order. Where a
smaller line number repeatedly follows a larger one, each such return ends an iteration of a loop.
The outermost such function contains the program's loop. The search stops at the call of a module or
an optimizer: loops inside them are over layers and parameters.
"""

from __future__ import annotations

import numpy as np

from ullage.explain.owners.sites import has_python_file
from ullage.trace.replay import Replay
from ullage.trace.snapshot import Int64Array, Stacks

_MIN_ROUNDS = 4
_MAX_DEPTH = 64
_INNER = frozenset({"_call_impl", "_wrapped_call_impl", "step", "backward", "forward"})


def find_rounds(stacks: Stacks, replay: Replay) -> Int64Array:
    """Returns the events before which iterations of the loop ended; empty where none is found."""
    blocks = replay.blocks
    born = np.flatnonzero(blocks.birth >= 0)
    used = blocks.stack[born].astype(np.int64)
    events = blocks.birth[born]
    is_python = np.array([has_python_file(file) for file in stacks.frames.file], dtype=np.bool_)
    paths = {
        int(stack): _outermost_first(stacks, int(stack), is_python) for stack in np.unique(used)
    }
    table = np.full((len(stacks), _MAX_DEPTH), -1, dtype=np.int64)
    for stack, path in paths.items():
        table[stack, : len(path)] = path[:_MAX_DEPTH]
    functions = _function_numbers(stacks)
    here = used[table[used, 0] >= 0]
    when = events[table[used, 0] >= 0]
    for depth in range(_MAX_DEPTH):
        frames = table[here, depth]
        here, when, frames = here[frames >= 0], when[frames >= 0], frames[frames >= 0]
        if len(here) < _MIN_ROUNDS:
            break
        # The function with the most allocations below it.
        heaviest = np.bincount(functions[frames]).argmax()
        name = stacks.frames.function[frames[functions[frames] == heaviest][0]]
        if name in _INNER:
            break
        chosen = functions[frames] == heaviest
        here, when, frames = here[chosen], when[chosen], frames[chosen]
        lines = stacks.frames.line[frames]
        returns = np.flatnonzero(lines[1:] < lines[:-1]) + 1
        if len(returns) + 1 >= _MIN_ROUNDS:
            int64_array: Int64Array = when[returns]
            return int64_array
        line = np.bincount(frames).argmax()
        here, when = here[frames == line], when[frames == line]
    return np.empty(0, dtype=np.int64)


def _outermost_first(stacks: Stacks, stack: int, is_python: np.ndarray) -> Int64Array:
    frames = stacks.frame[stacks.start[stack] : stacks.start[stack + 1]].astype(np.int64)
    outermost_first: Int64Array = frames[is_python[frames]][::-1]
    return outermost_first


def _function_numbers(stacks: Stacks) -> Int64Array:
    """Returns a number for each frame; frames of the same function share it."""
    numbers: dict[tuple[str, str], int] = {}
    names = zip(stacks.frames.file, stacks.frames.function, strict=True)
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)
