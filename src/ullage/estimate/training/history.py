"""The order in which a training program asks for memory: from a played step to the allocator.

What is reserved depends on all that came before: a first step without optimizer states, then the
states, then a second step among what the first one left. csrc/replay.c has the allocator's rules.

    replay(timeline)        # Reserved(reserved_bytes=..., allocated_bytes=...)
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from ullage.errors import SpecError, UllageError
from ullage.estimate.training.timeline import Stretch, Timeline
from ullage.native.libraries import REPLAY
from ullage.trace.category import Category

# Kinds of runs. Of an heir (see _find_heirs) the oldest block is freed, in a backward pass the
# newest; a run of the third kind frees what it names.
_FORWARD, _BACKWARD, _DROP = range(3)


class Reserved(NamedTuple):
    """What the allocator comes to.

    Attributes:
        reserved_bytes: segments.
        allocated_bytes: the most that was in blocks, which may be larger than what was asked for.
    """

    reserved_bytes: int
    allocated_bytes: int


class _Run(NamedTuple):
    """Positions of the log, and how many times the program passes through them."""

    begin: int
    end: int
    repeats: int
    kind: int


def replay(timeline: Timeline) -> Reserved:
    """What two steps of a program come to: build, step, states, step.

    Counts: all that comes and goes, in every repetition of every layer.
    Ignores: empty_cache(), other settings than the default ones, and memory that waits for another
    stream.
    Error: in the cases of docs/results/estimates.md 0.1 % of reserved bytes in the median,
    12 % at worst, where one large request more does not fit; of allocated bytes 0.01 %, and 2.3 %.
    Source: c10/cuda/CUDACachingAllocator.cpp.

    Raises:
        SpecError: more is asked for than there are numbers.
        UllageError: the native part was not built.
    """
    log = timeline.log
    sizes, streams = log.sizes, bytearray(len(log.requested))
    first = next(begin for begin, phase in log.phases if phase != "build")
    for event in log.events[:first]:
        if event < 0:  # weights that were quantized: a program loads them quantized
            sizes[~event] = 0
    for index in log.standing:  # two steps are replayed: the first one leaves them itself
        sizes[index] = 0
    for index, stream in log.streams.items():
        streams[index] = stream
    runs, dropped = _program(timeline)
    peaks = array("q", (0, 0))
    try:
        is_done = _load_library().replay_log(
            pack("q", sizes), len(sizes), bytes(streams), pack("i", log.events),
            pack("i", _find_heirs(timeline, sizes)), pack("i", dropped),
            pack("q", [field for run in runs for field in run]), len(runs),
            peaks.buffer_info()[0],
        )  # fmt: skip
    except OverflowError:
        is_done = False
    if not is_done:
        raise SpecError(
            "the recipe asks for more memory than can be counted, 8 EiB; lower batch, length or "
            "the model's sizes"
        )
    return Reserved(*peaks)


def pack(kind: str, numbers: Sequence[int]) -> ctypes.Array[ctypes.c_char]:
    """Numbers as C reads them, of a kind that `array` knows."""
    packed = array(kind, numbers or (0,))
    return (ctypes.c_char * (len(packed) * packed.itemsize)).from_buffer(packed)


@cache
def _load_library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(REPLAY))
    except OSError as error:
        raise UllageError(
            f"the native part {REPLAY.name} is missing ({error}); "
            "build it with `python -m ullage.native.build`"
        ) from None
    number, numbers = ctypes.c_int64, ctypes.c_void_p
    library.replay_log.argtypes = [
        numbers, number, ctypes.c_char_p, numbers, numbers, numbers, numbers, number, numbers,
    ]  # fmt: skip
    return library


def _program(timeline: Timeline) -> tuple[list[_Run], list[int]]:
    """What happens in order, and the storages that runs of kind _DROP free."""
    model, states, passes, optimizer = _parts(timeline)
    gradients, variables = _left(timeline, passes)
    num_forward = next(
        (place for place, pass_ in enumerate(passes) if pass_.phase == "backward"), len(passes)
    )
    runs = [_run(section) for part in (model, passes, states, optimizer) for section in part]
    # zero_grad(); what the loop's variables hold stays until there is a new loss
    zero_grad = _Run(0, len(gradients), 1, _DROP)
    forward = [_run(section) for section in passes[:num_forward]]
    runs += [*forward, zero_grad] if timeline.log.standing else [zero_grad, *forward]
    runs.append(_Run(len(gradients), len(gradients) + len(variables), 1, _DROP))
    runs += [_run(section) for part in (passes[num_forward:], optimizer) for section in part]
    return runs, gradients + variables


def _run(stretch: Stretch) -> _Run:
    return _Run(
        stretch.begin, stretch.end, stretch.repeats, _BACKWARD * (stretch.phase == "backward")
    )


def _parts(timeline: Timeline) -> list[list[Stretch]]:
    """The model, the states, the passes, the optimizer's step."""
    builds = [begin for begin, phase in timeline.log.phases if phase == "build"]
    parts: list[list[Stretch]] = [[], [], [], []]
    for stretch in timeline.stretches:
        if stretch.phase == "build":
            parts[int(len(builds) > 1 and stretch.begin >= builds[1])].append(stretch)
        else:
            parts[3 if stretch.phase == "optimizer" else 2].append(stretch)
    return parts


def _left(timeline: Timeline, passes: Sequence[Stretch]) -> tuple[list[int], list[int]]:
    """Storages that the passes have made: gradients, each as often as it is there, and the others
    that outlive them.
    """
    log = timeline.log
    events = set(log.events)
    gradients, variables = [], []
    for pass_ in passes:
        for index in log.events[pass_.begin : pass_.end]:
            if index >= 0 and log.categories[index] is Category.GRADIENT:
                gradients += pass_.repeats * [index]
            elif index >= 0 and ~index not in events:
                variables += pass_.repeats * [index]
    return gradients, variables


def _find_heirs(timeline: Timeline, sizes: Sequence[int]) -> list[int]:
    """For each storage, the one that stands for it in the repetitions of a stretch; -1: none."""
    # Where a layer frees a storage of the first layer, each later layer frees the storage that the
    # layer before it made in the same place.
    log, stretches = timeline.log, timeline.stretches
    heirs = [-1] * len(sizes)
    births = [
        [event for event in log.events[row.begin : row.end] if event >= 0] for row in stretches
    ]
    # (stretch, place in it): counted from its end, as a pattern of layers ends like its last layer
    places = {
        index: (number, len(among) - place)
        for number, among in enumerate(births)
        for place, index in enumerate(among)
    }
    for number, row in enumerate(stretches):
        for event in log.events[row.begin : row.end] if row.repeats > 1 else ():
            if event >= 0 or stretches[places[~event][0]].repeats == row.repeats:
                continue
            first, place = places[~event]
            alike = _find_alike(stretches, number, first)
            if alike is not None and place <= len(births[alike]):
                heir = births[alike][-place]
                is_same = sizes[heir] == sizes[~event]
                is_same = is_same and log.streams.get(heir) == log.streams.get(~event)
                heirs[~event] = heir if is_same else -1
    return heirs


def _find_alike(stretches: Sequence[Stretch], number: int, first: int) -> int | None:
    """The number of the stretch that is of the same layers as one, repeated as often, and in the
    phase of a first one: the nearest to that.
    """
    row, phase = stretches[number], stretches[first].phase
    if row.phase == phase:
        return number
    alike = (
        place
        for place, stretch in enumerate(stretches)
        if (stretch.phase, stretch.name, stretch.repeats) == (phase, row.name, row.repeats)
    )
    return min(alike, key=lambda place: abs(place - first), default=None)
