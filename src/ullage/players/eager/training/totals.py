"""The totals of a played log: the program that it stands for, in blocks of PyTorch's allocator.

    totals = count_totals(log)
    totals.reserved_bytes, totals.peak.allocated_bytes, totals.peaks["forward"].by_category

The log has one step, in which layers repeat. The program is: build, a step, the optimizer's states,
a step. So the first step goes through what the second one does, before there are states; what is
reserved depends on it. csrc/play_log.c unrolls it, and has the rules of the categories.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from ullage.ground.errors import SpecError, UllageError
from ullage.ground.native.libraries import REPLAY
from ullage.log.category import Category
from ullage.players.eager.training.eager.arena import Log

# What is done with the events of a stretch (csrc/play_log.c).
_LOAD, _PLAIN, _FORWARD, _BACKWARD, _ZERO_GRAD, _RELEASE = range(6)
_KINDS: Final = {"build": _LOAD, "forward": _FORWARD, "backward": _BACKWARD}
_CATEGORIES: Final = tuple(Category)
_CODES: Final = {None: 255} | {category: code for code, category in enumerate(_CATEGORIES)}
_PASSES: Final = ("batch", "forward", "backward")
_MEASURED: Final = ("forward", "backward", "optimizer")


class Stretch(NamedTuple):
    """A part of the log that the program passes through `repeats` times in a row.

    Attributes:
        begin, end: positions in the log; end is exclusive.
        repeats: how many times in a row it runs.
        kind: what is done with its events.
        part: the number of its phase among all that begin.
        moment: its phase's number among those whose peaks are measured; -1: it is not.
        phase: "build", "batch", "forward", "backward", "states" or "optimizer".
        name: of its section; "" between sections.
    """

    begin: int
    end: int
    repeats: int
    kind: int
    part: int
    moment: int
    phase: str
    name: str

    @property
    def is_between(self) -> bool:
        """It is not a part of a step: what the step before has left goes."""
        return self.kind >= _ZERO_GRAD


_NUMBERS: Final = 6  # of a stretch, as `struct run` of play_log.c has them


@dataclass(frozen=True, slots=True)
class Moment:
    """The live blocks at one moment, by owner.

    Attributes:
        allocated_bytes: of the blocks.
        requested_bytes: bytes that the program requested.
        by_category: allocated bytes; they add up to allocated_bytes.
        requested_by_category: requested bytes; they add up to requested_bytes.
        section: the name of the section, such as "layers"; "" outside.
        phase: "forward", "backward" or "optimizer"; "" at the end.
    """

    allocated_bytes: int
    requested_bytes: int
    by_category: Mapping[Category, int]
    requested_by_category: Mapping[Category, int]
    section: str
    phase: str


@dataclass(frozen=True, slots=True)
class StepTotals:
    """The totals of two steps.

    Attributes:
        reserved_bytes: segments.
        low_bytes, high_bytes: the most that is allocated, where sizes that a closed library decides
            are at an end; the lower one is without what blocks have beyond their requests.
        peaks: of each phase the moment at which most is allocated, the first of several.
        end: what is left after the second step.
    """

    reserved_bytes: int
    low_bytes: int
    high_bytes: int
    peaks: Mapping[str, Moment]
    end: Moment

    @property
    def peak(self) -> Moment:
        """The moment at which most is allocated; the first of several."""
        return max(self.peaks.values(), key=lambda moment: moment.allocated_bytes)


def count_totals(log: Log) -> StepTotals:
    """Counts the totals of the program of a log.

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
    played = play(log)
    names, moments = played.names, played.moments
    read = [
        _read(moment, played.runs[moment.run].name if name else "", name)
        for moment, name in zip(moments, (*names, ""), strict=True)
    ]
    return StepTotals(
        played.reserved_bytes,
        max((moment.low for moment in moments[:-1]), default=0),
        max((moment.high for moment in moments[:-1]), default=0),
        dict(zip(names, read, strict=False)),
        read[-1],
    )


class _Moment(ctypes.Structure):
    """`struct moment` of play_log.c."""

    run: int
    allocated: int
    low: int
    high: int
    by_category: Sequence[int]
    requested: Sequence[int]
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("run", "allocated", "low", "high")),
        *((name, ctypes.c_int64 * len(_CATEGORIES)) for name in ("by_category", "requested")),
    )


class StepPart(NamedTuple):
    """One passage through a stretch of the second step.

    Attributes:
        phase, name: of the stretch; "" between sections.
        turn, repeats: which time it is, of how many.
        begin, peak_at, end: events of the step before it, at its highest, and after it.
        start_bytes, peak_bytes, end_bytes: allocated then.
    """

    phase: str
    name: str
    turn: int
    repeats: int
    begin: int
    peak_at: int
    end: int
    start_bytes: int
    peak_bytes: int
    end_bytes: int


def list_passages(log: Log) -> Iterator[tuple[Stretch, Sequence[int]]]:
    """The second step: each passage through a stretch, with the numbers of `struct passage` but its
    run.

    Raises:
        SpecError: more is asked for than there are numbers.
        UllageError: the native part was not built.
    """
    played = play(log)
    for run, *numbers in zip(*[iter(played.parts)] * _PART, strict=True):
        if run >= played.num_first and played.runs[run].moment >= 0:
            yield played.runs[run], numbers


def list_parts(log: Log) -> Iterator[StepPart]:
    """The second step, for a drawing; raises as list_passages() does."""
    start = None
    for its, (turn, begin, peak_at, end, *sizes) in list_passages(log):
        start = begin if start is None else start
        positions = (begin - start, peak_at - start, end - start)
        yield StepPart(its.phase, its.name, turn, its.repeats, *positions, *sizes)


class Play(NamedTuple):
    """The program, and what C found.

    Attributes:
        runs: what it passes through.
        num_first: those of them up to the end of the first step.
        names: the phases that are measured.
        moments: of each of them, and the end.
        parts: rows of numbers, as list_passages() reads them.
        reserved_bytes: segments.
        categories: of each storage, as a number.
        events: rows of numbers, if they were asked for: storage or its complement, run, repetition
            of it, address, bytes of the block, bytes that are reserved then.
    """

    runs: Sequence[Stretch]
    num_first: int
    names: Sequence[str]
    moments: ctypes.Array[_Moment]
    parts: ctypes.Array[ctypes.c_int64]
    reserved_bytes: int
    categories: bytes
    events: bytes


_ROW, _PART = 6, 8


def play(log: Log, *, with_events: bool = False) -> Play:
    """Passes through the program of a log.

    Raises:
        SpecError: more is asked for than there are numbers.
        UllageError: the native part was not built.
    """
    stretches = list(find_stretches(log))
    names, (first, second) = _measured(stretches), _program(stretches, zeroes_late=log.zeroes_late)
    runs = [*first, *second]
    moments, reserved, count = (_Moment * (len(names) + 1))(), ctypes.c_int64(), ctypes.c_int64()
    num_parts = sum(run.repeats for run in runs if not run.is_between)
    parts = (ctypes.c_int64 * (_PART * num_parts))()
    most = sum((run.end - run.begin) * run.repeats for run in runs) if with_events else 0
    rows = (ctypes.c_int64 * (_ROW * most))() if with_events else None
    categories = _pack_numbers("B", [_CODES[category] for category in log.categories])
    try:
        played = _pack(log, _find_heirs(log, stretches), runs, categories)
        played.num_moments = len(names)
        is_done = _load().play_log(
            ctypes.byref(played),
            moments,
            parts,
            ctypes.byref(reserved),
            rows,
            ctypes.byref(count),
        )
    except OverflowError:
        is_done = 0
    if not is_done:
        raise SpecError(
            "the recipe asks for more memory than can be counted, 8 EiB; lower batch, length or "
            "the model's sizes"
        )
    events = b"" if rows is None else memoryview(rows).cast("B")[: 8 * _ROW * count.value].tobytes()
    return Play(runs, len(first), names, moments, parts, reserved.value, bytes(categories), events)


def find_stretches(log: Log) -> Iterator[Stretch]:
    """The log cut at its sections and phases, in order, a phase in which nothing happens too."""
    sections = sorted(log.sections, key=lambda section: section.begin)
    place = position = 0
    ends = [begin for begin, _ in log.phases[1:]] + [log.position]
    for part, ((start, phase), stop) in enumerate(zip(log.phases, ends, strict=True)):
        position, kind = start, _KINDS.get(phase, _PLAIN)
        while place < len(sections) and sections[place].begin < stop:
            section = sections[place]
            place += 1
            if section.begin > position:
                yield Stretch(position, section.begin, 1, kind, part, -1, phase, "")
                position = section.begin
            end = min(section.end, stop)
            if end > section.begin:
                repeats, name = section.repeats, section.name
                yield Stretch(section.begin, end, repeats, kind, part, -1, phase, name)
                position = end
        if position < stop or start == stop:
            yield Stretch(position, stop, 1, kind, part, -1, phase, "")


def _measured(stretches: Sequence[Stretch]) -> list[str]:
    """The phases whose peaks are told, of those that there are."""
    return [name for name in _MEASURED if any(row.phase == name for row in stretches)]


def _program(stretches: Sequence[Stretch], *, zeroes_late: bool) -> tuple[list[Stretch], ...]:
    measured = {name: number for number, name in enumerate(_measured(stretches))}
    model, passes, states, optimizer = (
        [
            row._replace(moment=measured.get(row.phase, -1))
            for row in stretches
            if row.phase in names
        ]
        for names in (("build",), _PASSES, ("states",), ("optimizer",))
    )
    # What the loop's variables hold stays until there is a new batch, and a new loss. zero_grad()
    # comes before the step, or late.
    phases = [row.phase for row in passes]
    first_forward = next((at for at, phase in enumerate(phases) if phase != "batch"), len(passes))
    first_backward = phases.index("backward") if "backward" in phases else len(passes)
    zero_grad, variables = (
        [row._replace(kind=kind, moment=-1) for row in passes] for kind in (_ZERO_GRAD, _RELEASE)
    )
    return [*model, *passes, *states, *optimizer], [
        *([] if zeroes_late else zero_grad),
        *passes[:first_forward],
        *(row for row in variables if row.phase == "batch"),
        *passes[first_forward:first_backward],
        *(row for row in variables if row.phase != "batch"),
        *(zero_grad if zeroes_late else []),
        *passes[first_backward:],
        *optimizer,
    ]


def _find_heirs(log: Log, stretches: Sequence[Stretch]) -> list[int]:
    """For each storage, the one that stands for it in the repetitions of a stretch; -1: none."""
    # Where a layer frees a storage of the first layer, each later layer frees the storage that the
    # layer before it made in the same place.
    heirs = [-1] * len(log.requested)
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
                is_same = log.size(heir) == log.size(~event)
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


class _PlayedLog(ctypes.Structure):
    num_moments: int
    chooses_by_age: int
    columns: tuple[ctypes.Array[ctypes.c_char], ...]
    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in ("num_storages", "num_runs", "num_moments", "chooses_by_age")
        ),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "requested", "low", "high", "events", "heirs", "runs", "categories", "streams",
            )
        ),
    )  # fmt: skip


def _pack(
    log: Log, heirs: Sequence[int], runs: Sequence[Stretch], categories: ctypes.Array[ctypes.c_char]
) -> _PlayedLog:
    """The log as C reads it; OverflowError where a number is too large."""
    requested, low, high = log.requested, list(log.requested), list(log.requested)
    for storage, (least, most) in log.assumed.items():
        low[storage], high[storage] = least, most
    streams = bytearray(len(requested))
    for storage, stream in log.streams.items():
        streams[storage] = stream
    numbers = [number for run in runs for number in run[:_NUMBERS]]
    wide = [_pack_numbers("q", column) for column in (requested, low, high)]
    narrow = [_pack_numbers("i", column) for column in (log.events, heirs)]
    columns = (
        *wide, *narrow, _pack_numbers("q", numbers), categories, _pack_numbers("B", streams),
    )  # fmt: skip
    addresses = map(ctypes.addressof, columns)
    played = _PlayedLog(len(requested), len(runs), 0, log.chooses_by_age, *addresses)
    played.columns = columns  # they live as long as it does
    return played


def _pack_numbers(kind: str, numbers: Sequence[int]) -> ctypes.Array[ctypes.c_char]:
    packed = array(kind, numbers or (0,))
    return (ctypes.c_char * (len(packed) * packed.itemsize)).from_buffer(packed)


@cache
def _load() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(REPLAY))
    except OSError as error:
        raise UllageError(
            f"the native part {REPLAY.name} is missing ({error}); "
            "build it with `python -m ullage.ground.native.build`"
        ) from None


def _read(moment: _Moment, section: str, phase: str) -> Moment:
    by_category, requested = (
        {category: size for category, size in zip(_CATEGORIES, sizes, strict=True) if size}
        for sizes in (moment.by_category, moment.requested)
    )
    return Moment(moment.allocated, sum(requested.values()), by_category, requested, section, phase)
