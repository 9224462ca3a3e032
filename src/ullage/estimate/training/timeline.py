"""What a played log comes to when each section is repeated as often as the real program does.

timeline = Timeline(arena.log)
peak = timeline.peak()
peak.allocated_bytes, peak.by_category, peak.section
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from ullage.estimate.training.eager.arena import Log
from ullage.trace.category import Category


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the log that is passed through `repeats` times in a row.

    Attributes:
        name: name of its section; "" between sections.
        phase: "build", "forward", "backward" or "optimizer".
        repeats: how many times in a row it runs.
        begin, end: positions in the log; end is exclusive.
        start_bytes: bytes live before it, the first time.
        delta_bytes: bytes by which it raises the live bytes, each time.
        high_bytes: its highest live bytes, above those before it.
        high_position: the position just after the event that reaches them.
    """

    name: str
    phase: str
    repeats: int
    begin: int
    end: int
    start_bytes: int
    delta_bytes: int
    high_bytes: int
    high_position: int

    @property
    def times_before_peak(self) -> int:
        """Repetitions before the highest: where each leaves more than the last, all but one."""
        return self.repeats - 1 if self.delta_bytes > 0 else 0

    @property
    def peak_bytes(self) -> int:
        """The most that was live in any of its repetitions."""
        return self.start_bytes + self.high_bytes + self.times_before_peak * self.delta_bytes

    @property
    def end_bytes(self) -> int:
        """Live after its last repetition."""
        return self.start_bytes + self.repeats * self.delta_bytes


@dataclass(frozen=True, slots=True)
class Moment:
    """The live bytes at one position, by owner.

    Attributes:
        allocated_bytes: blocks, rounded up to 512 bytes as the allocator does.
        requested_bytes: bytes that the program requested.
        by_category: allocated bytes; they add up to allocated_bytes.
        requested_by_category: requested bytes; they add up to requested_bytes.
        section: the name of the section, such as "layers"; "" outside.
        phase: "build", "forward", "backward" or "optimizer".
    """

    allocated_bytes: int
    requested_bytes: int
    by_category: Mapping[Category, int]
    requested_by_category: Mapping[Category, int]
    section: str
    phase: str


class Timeline:
    """A log, unrolled.

    Attributes:
        log: the log that was played, up to now; what is freed later is not in it.
        stretches: the stretches of the log, in order.
    """

    def __init__(self, log: Log) -> None:
        self.log = log.freeze()
        self._sizes = self.log.sizes
        self.stretches = tuple(_unroll(self.log, self._sizes))

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases that it goes through, each once, in order."""
        return tuple(dict.fromkeys(stretch.phase for stretch in self.stretches))

    @property
    def work(self) -> int:
        """Floating-point operations of all products of matrices, two for each element of a sum.
        Attention's own kernels are not among them.
        """
        begins = [stretch.begin for stretch in self.stretches]
        return sum(
            count * self.stretches[bisect_right(begins, position) - 1].repeats
            for position, count in self.log.work
        )

    @property
    def peak_bytes(self) -> int:
        """The most that is allocated in a step."""
        return self._highest().peak_bytes

    def peak(self, phase: str | None = None) -> Moment:
        """The moment at which the most is allocated, of a step or of one phase; the first of
        several.
        """
        highest = self._highest(phase)
        return self._moment(highest, highest.high_position, highest.times_before_peak)

    def _highest(self, phase: str | None = None) -> Stretch:
        among = [stretch for stretch in self.stretches if phase in (None, stretch.phase)]
        if phase is None:  # what is built is there in a step, too
            among = [stretch for stretch in among if stretch.phase != "build"] or among
        return max(among, key=lambda stretch: stretch.peak_bytes)

    def ends(self) -> tuple[int, int]:
        """Its peak, were each storage whose size is assumed as small, or as large, as may be."""
        lowest, highest = (Timeline(log) for log in (self.log.lowest(), self.log.highest()))
        return lowest.peak_bytes, highest.peak_bytes

    def end(self) -> Moment:
        """What is left at the end."""
        last = self.stretches[-1]
        return self._moment(last, last.end, last.repeats - 1)

    @cached_property
    def _lasting(self) -> list[list[int]]:
        """Of each stretch the events of storages that do not both come and go in it."""
        numbers = []
        for stretch in self.stretches:
            events = self.log.events[stretch.begin : stretch.end]
            alive = set(events)
            numbers.append([event for event in events if ~event not in alive])
        return numbers

    @cached_property
    def _activations(self) -> set[int]:
        """What was made in a forward pass and is there at its end."""
        log = self.log
        numbers: set[int] = set()
        ends = [begin for begin, _ in log.phases[1:]] + [log.position]
        for (begin, phase), end in zip(log.phases, ends, strict=True):
            if phase == "forward":
                alive = set(log.events[begin:end])
                numbers.update(event for event in alive if event >= 0 and ~event not in alive)
        return numbers

    def _live(self, stretch: Stretch, position: int, times: int) -> Iterator[tuple[int, int]]:
        """The storages that are live at a position, and how many like each.

        times: repetitions of the position's stretch that came before. A count is below 0 where a
        layer frees a storage of the layer before it.
        """
        happened: Counter[int] = Counter()
        for other, lasting in zip(self.stretches, self._lasting, strict=True):
            repeats = times if other is stretch else other.repeats
            if repeats == 1:
                happened.update(lasting)
            else:
                for event in lasting:
                    happened[event] += repeats
            if other is stretch:
                break
        happened.update(self.log.events[stretch.begin : position])
        for event, count in happened.items():
            if event >= 0 and (number := count - happened.get(~event, 0)):
                yield event, number

    def _moment(self, stretch: Stretch, position: int, times: int) -> Moment:
        allocated: dict[Category, int] = {}
        requested: dict[Category, int] = {}
        log, sizes, activations = self.log, self._sizes, self._activations
        for index, number in self._live(stretch, position, times):
            category = log.categories[index]
            if category is None:
                is_kept = index in activations
                category = Category.ACTIVATION if is_kept else Category.TEMPORARY
            allocated[category] = allocated.get(category, 0) + number * sizes[index]
            requested[category] = requested.get(category, 0) + number * log.requested[index]
        return Moment(
            sum(allocated.values()),
            sum(requested.values()),
            allocated,
            requested,
            stretch.name,
            stretch.phase,
        )


def _unroll(log: Log, sizes: Sequence[int]) -> Iterator[Stretch]:
    """The log cut at its sections and phases; what was live before each counts repetitions."""
    changes = [*sizes, *(-size for size in reversed(sizes))]  # by event: a death counts from behind
    # before each event, without repetitions
    levels = list(accumulate(map(changes.__getitem__, log.events), initial=0))
    live = 0
    for name, phase, repeats, begin, end in _cut(log):
        high = max(levels[begin : end + 1])
        start, delta = levels[begin], levels[end] - levels[begin]
        place = levels.index(high, begin)
        yield Stretch(name, phase, repeats, begin, end, live, delta, high - start, place)
        live += repeats * delta


def _cut(log: Log) -> Iterator[tuple[str, str, int, int, int]]:
    """(name, phase, repeats, begin, end) of each section, and of what lies between two, in order.
    A phase in which nothing happens is there too.
    """
    sections = sorted(log.sections, key=lambda section: section.begin)
    place = position = 0
    ends = [begin for begin, _ in log.phases[1:]] + [log.position]
    for (start, phase), stop in zip(log.phases, ends, strict=True):
        position = start
        while place < len(sections) and sections[place].begin < stop:
            section = sections[place]
            place += 1
            if section.begin > position:
                yield "", phase, 1, position, section.begin
                position = section.begin
            end = min(section.end, stop)
            if end > section.begin:
                yield section.name, phase, section.repeats, section.begin, end
                position = end
        if position < stop or start == stop:
            yield "", phase, 1, position, stop
