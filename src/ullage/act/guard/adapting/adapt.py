"""The rules by which a guard changes its rung before a step, without torch.

`Rules.choose` goes through them in order; docs/guide/adapt.md has the same in words:

1. The fastest rung on which the forecast of the batch fits is chosen; a faster one than the present
   must fit with some more room (hysteresis). Where none fits, it is the leanest.
2. While little is known of a rung, a batch larger than all that it has done is run on it if it
   fits on a faster one, to learn what it needs; not while all batches have one size.
3. After this many changes in an hour the guard goes to leaner rungs only.
4. Where the forecast comes near the limit, and does not fit beside what the allocator has cached
   for other batches, the cache is given back first.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ullage.act.guard.adapting.forecast import Forecast, Need, Sizes
from ullage.ground.errors import SpecError
from ullage.ground.units import format_bytes

HOUR_S = 3600.0
_LESSONS = 8
# After an error that the forecast did not foresee, so much more of the memory is left free.
_MORE_RESERVE, _MAX_RESERVE = 0.02, 0.2
# The cache is given back where the forecast is above this share of the memory, and the cache itself
# is: below it the allocator finds its way, or gives back what it must.
_NEAR, _MIN_CACHE = 0.8, 0.05
# A step that needs this much more than a larger one did is of another program.
_CHANGED = 1.05
# A rung that has only failed is tried again with batches below this share of the failed one.
_SMALL = 0.5
_MAX_LOG = 10_000


@dataclass(frozen=True, slots=True)
class Adapt:
    """The settings of a guard that adapts; see `ullage.guard`.

    Attributes:
        changes_per_hour: after this many changes within an hour it goes to leaner rungs only.
        reserve: the share of the memory that a forecast leaves free, for fragmentation.
        hysteresis: the share that it leaves free besides when it goes to a faster rung.
        trims: whether it gives back the allocator's cache where a batch would not fit beside it.
        splits: whether it splits the batch of `step_in_parts` before the step, where no plan is
            forecast to fit. It changes the rounding, and what the step draws.
        prints: whether each change is a line on stderr; it is in `Guard.log` in any case.
        sizes: from the arguments of the step, the number or numbers that its need grows with, such
            as the tokens of a row. None: the sizes of the tensors among the arguments.
    """

    changes_per_hour: int = 3600
    reserve: float = 0.03
    hysteresis: float = 0.02
    trims: bool = True
    splits: bool = False
    prints: bool = False
    sizes: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        if self.changes_per_hour < 0:
            raise SpecError(f"changes_per_hour={self.changes_per_hour}; expected 0 or more")
        for name in ("reserve", "hysteresis"):
            share = getattr(self, name)
            if not 0 <= share < 0.5:
                raise SpecError(f"{name}={share!r}; expected a share from 0 to below 0.5")


@dataclass(frozen=True, slots=True)
class Change:
    """A guard's change before a step, and its reason.

    Attributes:
        step: the number of the step, from 0.
        kind: "leaner", "faster", "learn", "trim", "split", "whole"; "limit": too many changes.
        before: the rung before it.
        after: the rung of the step.
        reason: a sentence.
    """

    step: int
    kind: str
    before: int
    after: int
    reason: str

    def __str__(self) -> str:
        before = "" if self.kind in ("trim", "limit") else f"{self.before} -> "
        return f"step {self.step}: {self.kind}: rung {before}{self.after}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Situation:
    """The situation before a step.

    Attributes:
        step: its number, from 0.
        now_s: a clock, in seconds.
        program: what tells steps of different kinds apart; they have forecasts of their own.
        sizes: of the batch.
        rung: the present one.
        allocated_bytes: of tensors, now.
        reserved_bytes: of the allocator, its cache included.
        capacity_bytes: what the allocator can have of the device.
    """

    step: int
    now_s: float
    program: Any
    sizes: Sizes
    rung: int
    allocated_bytes: int
    reserved_bytes: int
    capacity_bytes: int


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice before a step.

    Attributes:
        rung: the rung to go to.
        is_trimmed: whether the allocator's cache is given back.
        changes: what is new in the log.
    """

    rung: int
    is_trimmed: bool
    changes: tuple[Change, ...]


class Needs:
    """The forecasts for a situation, each computed when it is asked for."""

    def __init__(self, forecasts: Mapping[tuple[Any, int], Forecast], situation: Situation) -> None:
        self._forecasts = forecasts
        self._situation = situation
        self._needs: list[Need | None] = []

    def of(self, rung: int) -> Need | None:
        """That of a rung: its own or, as each takes less than the one before it, that of a faster
        one. None: nothing is known.
        """
        while len(self._needs) <= rung:
            forecast = self._forecasts.get((self._situation.program, len(self._needs)))
            own = None if forecast is None else forecast.upper(self._situation.sizes)
            faster = self._needs[-1] if self._needs else None
            is_own = faster is None or (own is not None and own.num_bytes < faster.num_bytes)
            self._needs.append(own if is_own else faster)
        return self._needs[rung]


class Rules:
    """Chooses the rung of each step.

    Args:
        settings: what the user has set.
        num_rungs: the rungs of the ladder, from the fastest to the leanest.

    Attributes:
        log: the last 10,000 changes, in order.
        num_changes: how many there were; those that say that the budget is used up are none.
        reserve: the share of the memory that forecasts leave free; it grows with errors.
    """

    def __init__(self, settings: Adapt, num_rungs: int) -> None:
        self.log: deque[Change] = deque(maxlen=_MAX_LOG)
        self.num_changes = 0
        self.reserve = settings.reserve
        self._settings = settings
        self._num_rungs = num_rungs
        self._forecasts: dict[tuple[Any, int], Forecast] = {}
        self._num_lessons = [0] * num_rungs
        self._first_sizes: Sizes | None = None
        self._has_lengths = False
        self._changed_at: deque[float] = deque()
        self._is_limited = False
        self._changes: list[Change] = []
        # By program: what the allocator's cache is known to serve, the last batch on its rung.
        self._served: dict[Any, tuple[Sizes, int]] = {}

    def choose(self, situation: Situation) -> Choice:
        """Chooses what to do before a step."""
        self._changes = []
        self._has_lengths |= situation.sizes != (self._first_sizes or situation.sizes)
        self._first_sizes = self._first_sizes or situation.sizes
        needs = self.needs(situation)
        fastest = self._fastest(situation, needs)
        rung, kind = fastest, "faster" if fastest < situation.rung else "leaner"
        lesson = self._rung_to_learn(situation, fastest, needs.of(fastest))
        if lesson is not None:
            rung, kind = lesson, "learn"
        is_optional = rung < situation.rung or kind == "learn"
        if rung != situation.rung and is_optional and not self._has_budget(situation):
            rung = max(situation.rung, fastest)
            kind = "leaner"
        if rung != situation.rung:
            self.note(situation, kind, rung, self._reason(situation, kind, rung, needs))
        if kind == "learn":
            self._num_lessons[rung] += 1
        is_trimmed = self._trims(situation, rung, needs.of(rung))
        return Choice(rung, is_trimmed, tuple(self._changes))

    def learn(self, situation: Situation, peak_bytes: int, *, is_first: bool) -> None:
        """Adds the step that was chosen for.

        Args:
            situation: before it; its rung is the one that the step was run on.
            peak_bytes: the allocator's peak in it.
            is_first: whether it left more than later ones will, such as the optimizer's states.
        """
        need_bytes = max(0, peak_bytes - situation.allocated_bytes)
        key = (situation.program, situation.rung)
        forecast = self._forecasts.setdefault(key, Forecast())
        upper = forecast.upper(situation.sizes)
        has_changed = (
            upper is not None
            and upper.basis == "measured"
            and need_bytes > _CHANGED * upper.num_bytes
        )
        if has_changed:
            forecast = self._forecasts[key] = Forecast()
        forecast.add(situation.sizes, need_bytes, is_provisional=is_first)
        self._served[situation.program] = situation.sizes, situation.rung

    def learn_failure(self, situation: Situation, rung: int) -> None:
        """Adds a step that has failed on the situation's rung and was recovered on another."""
        upper = self.needs(situation).of(situation.rung)
        if upper is not None and self.fits(situation, upper):
            self.reserve = min(self.reserve + _MORE_RESERVE, max(_MAX_RESERVE, self.reserve))
        for failed in range(rung):  # a faster rung needs more
            key = (situation.program, failed)
            forecast = self._forecasts.setdefault(key, Forecast())
            least_bytes = situation.capacity_bytes - situation.allocated_bytes
            forecast.add_failure(situation.sizes, least_bytes)
        self._served.clear()

    def needs(self, situation: Situation) -> Needs:
        """The forecasts for a situation."""
        return Needs(self._forecasts, situation)

    def need_of(self, situation: Situation, rung: int, sizes: Sizes) -> Need | None:
        """The forecast for a batch of other sizes on a rung or a faster one."""
        return self.needs(replace(situation, sizes=sizes)).of(rung)

    def need_measured(self, situation: Situation, rung: int) -> Need | None:
        """The need on a rung where a batch of at least these sizes was run on it, or has failed."""
        forecast = self._forecasts.get((situation.program, rung))
        need = None if forecast is None else forecast.upper(situation.sizes)
        return need if need is not None and need.basis == "measured" else None

    def fits(self, situation: Situation, need: Need, extra: float = 0.0) -> bool:
        """True if a need fits beside what is allocated, with the reserve and a further share."""
        limit = (1 - self.reserve - extra) * situation.capacity_bytes
        return situation.allocated_bytes + need.num_bytes <= limit

    def _fastest(self, situation: Situation, needs: Needs) -> int:
        """The fastest rung that fits; the present one while nothing is known."""
        is_known = False
        for rung in range(self._num_rungs):
            need = needs.of(rung)
            if need is None:
                if self._is_worth_a_try(situation, rung):
                    return rung
                continue
            is_known = True
            extra = self._settings.hysteresis if rung < situation.rung else 0.0
            if self.fits(situation, need, extra):
                return rung
        return self._num_rungs - 1 if is_known else situation.rung

    def _is_worth_a_try(self, situation: Situation, rung: int) -> bool:
        """True if a rung that has never completed a step may do a batch: it is far smaller than the
        one that failed, and on the next rung takes less than half of the memory.
        """
        forecast = self._forecasts.get((situation.program, rung))
        leaner = self._forecasts.get((situation.program, rung + 1))
        need = None if leaner is None else leaner.upper(situation.sizes)
        if forecast is None or need is None:
            return False
        is_small = forecast.is_below_failures(situation.sizes, _SMALL)
        return is_small and self.fits(situation, need, 0.5)

    def _rung_to_learn(self, situation: Situation, fastest: int, need: Need | None) -> int | None:
        """A leaner rung of which little is known, where the batch fits on the fastest as well."""
        if not self._has_lengths or need is None or not self.fits(situation, need):
            return None
        lessons = []
        for rung in range(fastest + 1, self._num_rungs):
            forecast = self._forecasts.get((situation.program, rung))
            if forecast is None:
                lessons.append((0, rung))
            elif not forecast.has_lines and not forecast.has_done(situation.sizes):
                lessons.append((self._num_lessons[rung], rung))
        num_lessons, rung = min(lessons, default=(_LESSONS, 0))
        return rung if num_lessons < _LESSONS else None

    def _has_budget(self, situation: Situation) -> bool:
        """True if a change that is not needed may be made; says so once when not."""
        while self._changed_at and self._changed_at[0] <= situation.now_s - HOUR_S:
            self._changed_at.popleft()
        limit = self._settings.changes_per_hour
        is_limited = len(self._changed_at) >= limit
        if is_limited and not self._is_limited:
            reason = f"{limit} changes within an hour; the guard goes to leaner rungs only"
            self._write(Change(situation.step, "limit", situation.rung, situation.rung, reason))
        self._is_limited = is_limited
        return not is_limited

    def note(self, situation: Situation, kind: str, rung: int, reason: str) -> None:
        """Logs a change, and counts it."""
        self._write(Change(situation.step, kind, situation.rung, rung, reason))
        self._changed_at.append(situation.now_s)
        self.num_changes += 1

    def _write(self, change: Change) -> None:
        self.log.append(change)
        self._changes.append(change)

    def _trims(self, situation: Situation, rung: int, need: Need | None) -> bool:
        """True if the allocator's cache, which is of other batches, is in the way of this one."""
        if not self._settings.trims or need is None:
            return False
        peak_bytes = situation.allocated_bytes + need.num_bytes
        cached_bytes = situation.reserved_bytes - situation.allocated_bytes
        is_in_the_way = (
            peak_bytes + cached_bytes > situation.capacity_bytes
            and peak_bytes > _NEAR * situation.capacity_bytes
            and self._served.get(situation.program) != (situation.sizes, rung)
            and cached_bytes > _MIN_CACHE * situation.capacity_bytes
        )
        if not is_in_the_way or not self._has_budget(situation):
            return False
        reason = (
            f"up to {format_bytes(peak_bytes)} of {format_bytes(situation.capacity_bytes)} are "
            f"needed, and {format_bytes(cached_bytes)} are cached for other batches"
        )
        self.note(situation, "trim", rung, reason)
        return True

    def _reason(self, situation: Situation, kind: str, rung: int, needs: Needs) -> str:
        capacity = format_bytes(situation.capacity_bytes)
        if kind == "learn":
            return f"to measure what rung {rung} needs, with a batch that also fits on a faster one"
        # Going leaner: what the rung needs that does not fit. Going faster: what the new one needs.
        asked = rung if kind == "faster" else situation.rung
        need = needs.of(asked)
        if need is None:
            return f"nothing is known of rung {asked}, and the batch is small"
        peak = format_bytes(situation.allocated_bytes + need.num_bytes)
        text = f"the batch needs up to {peak} of {capacity} on rung {asked}, {_BASES[need.basis]}"
        own = needs.of(rung)
        if kind == "leaner" and own is not None and not self.fits(situation, own):
            return f"{text}; no rung is forecast to fit, and this is the leanest"
        return text if need.num_sizes < 2 else f"{text} ({need.num_sizes} sizes)"


_BASES = {
    "measured": "as a batch of at least its size did",
    "fitted": "by the line through the batches so far",
    "proportional": "as it is in proportion to a smaller batch",
}


def read_settings(adapt: object) -> Adapt | None:
    """The settings of `ullage.guard(adapt=...)`; None: off.

    Raises:
        SpecError: it is something else.
    """
    if isinstance(adapt, Adapt):
        return adapt
    if adapt is True or adapt is False:
        return Adapt() if adapt else None
    raise SpecError(f"adapt={adapt!r}; expected True, False or ullage.Adapt(...)")


def square_sizes(values: Any) -> Sizes:
    """The sizes of one number or several, each with its square.

    Raises:
        SpecError: one is not a number, is below 0, or is infinite.
    """
    numbers = values if isinstance(values, list | tuple) else (values,)
    try:
        floats = [float(number) for number in numbers]
    except (TypeError, ValueError):
        raise SpecError(f"sizes= returned {values!r}; expected a number or several") from None
    if not floats or not all(0 <= number < math.inf for number in floats):
        raise SpecError(f"sizes= returned {values!r}; expected numbers from 0 up")
    return tuple(value for number in floats for value in (number, number * number))
