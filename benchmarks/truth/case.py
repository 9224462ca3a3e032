"""A case: a figure of a real GPU, what ullage says of it, and whether a verdict would be wrong.

    key = Key("workloads", "gpt_bf16", "reserved")
    Case.of(key, 100, (90, 95, 101), Meaning.NEED, "now 2026-11-28").is_wrong_fit   # False

A wrong "fits": of bytes that a job needs, the upper bound lies below the truth, so that the verdict
of a device with just as many bytes would be wrong. A false alarm: the lower bound lies above the
truth. Of room for a cache it is the other way round: too much is promised where the lower bound
lies above the truth. Where a job ran or ran out of memory, the verdict itself is judged.
"""

from __future__ import annotations

import csv
import enum
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

Figure = int | float | str | None
"""Bytes or events, seconds, a verdict in words; None where there is none."""
Interval = tuple[Figure, Figure, Figure]

_FLAGS: Final = {True: "yes", False: "no", None: ""}
NOT_RUN: Final = "not run"
FAILED: Final = "failed"
_ABSENT: Final = "the benchmark has no such case any more"


class Meaning(enum.Enum):
    """What a figure says about a verdict."""

    NEED = "a device must have it"
    ROOM = "a device leaves it for a cache"
    NEITHER = "no verdict follows from it"


class Key(NamedTuple):
    """What tells a case from all others."""

    source: str
    name: str
    quantity: str


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the table.

    Attributes:
        truth: of the real GPU.
        ours: low, likely, high; None where nothing is said.
        is_inside: the interval holds the truth, as far as its digits tell.
        is_wrong_fit, is_false_alarm: None where no verdict follows from the truth.
        run: "now DATE", "recorded DATE", NOT_RUN or FAILED.
        note: why it was not run, or what is special.
    """

    key: Key
    truth: Figure
    ours: Interval
    is_inside: bool | None
    is_wrong_fit: bool | None
    is_false_alarm: bool | None
    run: str
    note: str = ""

    @classmethod
    def of(
        cls,
        key: Key,
        truth: float,
        ours: tuple[float | None, float | None, float | None],
        meaning: Meaning,
        run: str,
        *,
        is_inside: bool | None = None,
        note: str = "",
    ) -> Self:
        """A figure beside an interval.

        Args:
            is_inside: by the source's own rule of rounding; None: by the ends of the interval, and
                of none if there is no interval.
        """
        low, _, high = ours
        if low is None or high is None:
            return cls(key, truth, ours, None, None, None, run, note)
        if is_inside is None:
            is_inside = low <= truth <= high
        is_below, is_above = (not is_inside and truth < low), (not is_inside and truth > high)
        wrong, alarm = {
            Meaning.NEED: (is_above, is_below),
            Meaning.ROOM: (is_below, is_above),
            Meaning.NEITHER: (None, None),
        }[meaning]
        return cls(key, truth, ours, is_inside, wrong, alarm, run, note)

    @classmethod
    def of_verdict(cls, key: Key, *, did_fit: bool, fits: bool | None, run: str) -> Self:
        """A job that ran or ran out of memory, beside the verdict; None: it may fit."""
        word = {True: "fits", False: "does not fit", None: "may fit"}
        wrong, alarm = fits is True and not did_fit, fits is False and did_fit
        truth = "ran" if did_fit else "out of memory"
        return cls(
            key, truth, (None, word[fits], None), not wrong and not alarm, wrong, alarm, run
        )  # fmt: skip

    @classmethod
    def without(cls, key: Key, run: str, note: str) -> Self:
        """A case that has no figures today."""
        return cls(key, None, (None, None, None), None, None, None, run, note)

    @property
    def has_figures(self) -> bool:
        """It was run, today or earlier."""
        return self.run not in (NOT_RUN, FAILED)

    @property
    def error(self) -> float | None:
        """Of the likely figure, as a share of the truth."""
        likely = self.ours[1]
        if isinstance(self.truth, str) or isinstance(likely, str):
            return None
        return likely / self.truth - 1 if self.truth and likely is not None else None

    @property
    def figures(self) -> tuple[str, ...]:
        """What is compared with the last commit's, as the table has it."""
        flags = (self.is_inside, self.is_wrong_fit, self.is_false_alarm)
        return (*map(write, (self.truth, *self.ours)), *(_FLAGS[flag] for flag in flags))

    def says(self) -> str:
        """Truth and answer in a line."""
        low, likely, high = map(_say, self.ours)
        return f"{_say(self.truth)}; ours {likely} ({low} to {high})"


def _say(figure: Figure) -> str:
    """A figure in a sentence."""
    if isinstance(figure, int):
        return f"{figure:,}"
    return f"{figure:.4g} s" if isinstance(figure, float) else figure or "-"


def write(figure: Figure) -> str:
    """A figure as the table has it: whole numbers whole, others with six digits."""
    if isinstance(figure, float):
        return f"{figure:.6g}"
    return "" if figure is None else str(figure)


def read(text: str) -> Figure:
    """The figure that was written."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None


Table = Mapping[Key, Case]
_BEFORE: Final = ("low_before", "likely_before", "high_before")
COLUMNS: Final = (
    *Key._fields, "truth", "low", "likely", "high", "error", "inside", "wrong_fits", "false_alarm",
    *_BEFORE, "run", "note",
)  # fmt: skip


def write_table(cases: Iterable[Case], before: Table) -> str:
    """The table as CSV, today beside the last commit's."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(COLUMNS)
    for case in cases:
        error = "" if case.error is None else f"{case.error:+.3%}"
        earlier = before[case.key].ours if case.key in before else (None, None, None)
        figures, flags = case.figures[:4], case.figures[4:]
        rows.writerow(
            (*case.key, *figures, error, *flags, *map(write, earlier), case.run, case.note)
        )
    return out.getvalue()


def read_table(text: str) -> dict[Key, Case]:
    """The table of a CSV."""
    flags = {word: flag for flag, word in _FLAGS.items()}
    cases = {}
    for row in csv.DictReader(io.StringIO(text)):
        key = Key(*(row[name] for name in Key._fields))
        low, likely, high = (read(row[name]) for name in ("low", "likely", "high"))
        judged = (flags[row[name]] for name in ("inside", "wrong_fits", "false_alarm"))
        cases[key] = Case(
            key, read(row["truth"]), (low, likely, high), *judged, row["run"], row["note"]
        )
    return cases


def with_recorded(cases: Sequence[Case], kept: Table) -> list[Case]:
    """What was not run today has the figures of its last run, and says of which day they are."""
    found = []
    for case in cases:
        last = kept.get(case.key)
        is_kept = case.run == NOT_RUN and last is not None and last.has_figures
        found.append(replace(as_recorded(last), note=case.note) if is_kept and last else case)
    return found


def as_recorded(case: Case) -> Case:
    """The figures of an earlier run, which are not fresh."""
    return replace(case, run=f"recorded {case.run.split()[-1]}") if case.has_figures else case


@dataclass(frozen=True, slots=True)
class Difference:
    """Today's table beside the last commit's.

    Attributes:
        changed: cases whose figures are others, the last commit's first.
        new: cases that the last commit does not have.
        lost: cases that had figures, with the reason why there are none.
        wrong_fits, false_alarms: cases that have become one.
    """

    changed: tuple[tuple[Case, Case], ...]
    new: tuple[Case, ...]
    lost: tuple[tuple[Case, str], ...]
    wrong_fits: tuple[Case, ...]
    false_alarms: tuple[Case, ...]

    @property
    def is_worse(self) -> bool:
        """A wrong "fits" or a false alarm appeared, or a case was lost."""
        return bool(self.lost or self.wrong_fits or self.false_alarms)

    def lines(self) -> list[str]:
        """What a reader is told, a line each."""
        named = [f"new: {len(self.new)} cases"] if self.new else []
        named += [
            f"changed: {_name(case)}: {case.says()}; the last commit said {earlier.says()}"
            for earlier, case in self.changed
        ]
        named += [f"lost: {_name(case)}: {why}" for case, why in self.lost]
        named += [f'a wrong "fits": {_name(case)}: {case.says()}' for case in self.wrong_fits]
        return named + [
            f"a false alarm: {_name(case)}: {case.says()}" for case in self.false_alarms
        ]


def _name(case: Case) -> str:
    return f"{case.key.source}, {case.key.name}, {case.key.quantity}"


def compare(cases: Sequence[Case], before: Table) -> Difference:
    """What is other than in the last commit's table."""
    today = {case.key: case for case in cases}
    both = [(before[key], case) for key, case in today.items() if key in before]
    had = {key: case for key, case in before.items() if case.has_figures}
    lost = [
        (case, today[key].note if key in today else _ABSENT)
        for key, case in had.items()
        if key not in today or not today[key].has_figures
    ]
    return Difference(
        changed=tuple(
            (earlier, case)
            for earlier, case in both
            if case.has_figures and case.figures != earlier.figures
        ),
        new=tuple(case for key, case in today.items() if key not in before),
        lost=tuple(lost),
        wrong_fits=tuple(
            case
            for case in cases
            if case.is_wrong_fit and not (case.key in before and before[case.key].is_wrong_fit)
        ),
        false_alarms=tuple(
            case
            for case in cases
            if case.is_false_alarm and not (case.key in before and before[case.key].is_false_alarm)
        ),
    )
