"""The steps of a trace that ullage did not record: by its annotations, else by its stacks.

The search descends the stacks from the outermost frame, always into the call with the most
allocations. In a function without a loop the allocating lines occur in ascending order. Where a
smaller line number repeatedly follows a larger one, each such return ends an iteration of a loop.
The outermost such function contains the program's loop. The search stops at the call of a module or
an optimizer: loops inside them are over layers and parameters.
"""

from __future__ import annotations

import numpy as np

from ullage.explain.moments.course import Course, Phase, StepSource
from ullage.explain.owners.sites import has_python_file
from ullage.trace.replay import Replay
from ullage.trace.snapshot import Int64Array, Snapshot, Stacks

_PROFILER_STEP, _OPTIMIZER_STEP = "ProfilerStep#", "Optimizer.step#"

_MIN_ROUNDS = 4
_MAX_DEPTH = 64
_INNER = frozenset({"_call_impl", "_wrapped_call_impl", "step", "backward", "forward"})


def guess_course(snapshot: Snapshot, replay: Replay, device: int) -> Course:
    """Guesses the course of a program over its events, as far as steps are seen."""
    ends, source = _annotated(snapshot, device), StepSource.ANNOTATIONS
    if not len(ends):
        ends = find_rounds(snapshot.stacks, replay)
        source = StepSource.STACKS if len(ends) else StepSource.NONE
    return Course(
        begin=np.array([-1], dtype=np.int64),
        phase=np.array([Phase.OUTSIDE], dtype=np.uint8),
        grad=np.zeros(1, dtype=np.bool_),
        step=np.zeros(1, dtype=np.int64),
        step_ends=ends,
        source=source,
        has_phases=False,
    )


def _annotated(snapshot: Snapshot, device: int) -> Int64Array:
    """The events before which steps ended, by the times of annotations; empty without any."""
    none: Int64Array = np.empty(0, dtype=np.int64)
    times = snapshot.events_of(device).time_us
    if not len(times) or not times.any():
        return none
    # A profiled iteration ends where the next begins; an optimizer's step ends an iteration.
    starts = [a.time_us for a in snapshot.annotations
             if a.name.startswith(_PROFILER_STEP) and a.stage == "START"]  # fmt: skip
    ended = [a.time_us for a in snapshot.annotations
             if a.name.startswith(_OPTIMIZER_STEP) and a.stage == "END"]  # fmt: skip
    moments = sorted(starts)[1:] if len(starts) > 1 else sorted(ended)
    inside = [m for m in moments if times[0] <= m <= times[-1] or m == moments[-1] >= times[-1]]
    return np.searchsorted(times, np.array(inside)) if inside else none


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
    numbers: dict[tuple[str, str], int] = {}
    names = zip(stacks.frames.file, stacks.frames.function, strict=True)
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)
