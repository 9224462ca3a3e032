"""How predictions compare with published times: errors, coverage, order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.time.published.row import Figure, Prediction

# Of fewer rows a rank correlation says nothing.
LEAST_FOR_RANKS = 3


@dataclass(frozen=True, slots=True)
class Comparison:
    """A row with both times, in seconds a step."""

    figure: Figure
    low_s: float
    likely_s: float
    high_s: float

    @property
    def error(self) -> float:
        """Relative: above 0 where the prediction is too slow."""
        return self.likely_s / self.figure.seconds - 1

    @property
    def is_inside(self) -> bool:
        """Whether the published time lies in the interval."""
        return self.low_s <= self.figure.seconds <= self.high_s


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs of a model, and whether the prediction names the faster one.

    Attributes:
        changed: the settings in which they differ.
    """

    first: Comparison
    second: Comparison
    changed: tuple[str, ...]

    @property
    def is_named_right(self) -> bool:
        """Whether the order of the likely times is that of the published ones."""
        published = self.first.figure.seconds - self.second.figure.seconds
        return (self.first.likely_s - self.second.likely_s) * published > 0


@dataclass(frozen=True, slots=True)
class Score:
    """Over some rows: the median and the ninth decile of the relative error, the share inside."""

    count: int
    median: float
    ninth_decile: float
    inside: float


def compare(
    figures: Sequence[Figure], predictions: Mapping[str, Prediction]
) -> tuple[Comparison, ...]:
    """The rows that have a prediction."""
    return tuple(
        Comparison(figure, made.low_s, made.likely_s, made.high_s)
        for figure in figures
        if (made := predictions.get(figure.name)) is not None
        and made.low_s is not None
        and made.likely_s is not None
        and made.high_s is not None
    )


def score(rows: Sequence[Comparison]) -> Score:
    """The score of one row or more."""
    errors = [abs(row.error) for row in rows]
    median, ninth = (float(np.quantile(errors, part)) for part in (0.5, 0.9))
    return Score(len(rows), median, ninth, sum(row.is_inside for row in rows) / len(rows))


def families(rows: Sequence[Comparison]) -> dict[str, list[Comparison]]:
    """The rows by family and published GPU."""
    groups: dict[str, list[Comparison]] = {}
    for row in rows:
        groups.setdefault(f"{row.figure.family}, {row.figure.gpu}", []).append(row)
    return groups


def rank_correlation(rows: Sequence[Comparison]) -> float | None:
    """Spearman's, of likely and published times; None for fewer than three rows."""
    if len(rows) < LEAST_FOR_RANKS:
        return None
    likely = _ranks([row.likely_s for row in rows])
    published = _ranks([row.figure.seconds for row in rows])
    return float(np.corrcoef(likely, published)[0, 1])


def pairs(rows: Sequence[Comparison], num_changed: int) -> Iterator[Pair]:
    """All pairs of rows of one model that differ in so many settings, in the rows' order."""
    for first, second in itertools.combinations(rows, 2):
        if first.figure.model == second.figure.model:
            changed = _changed(first.figure.settings, second.figure.settings)
            if len(changed) == num_changed:
                yield Pair(first, second, changed)


def _changed(first: Mapping[str, str], second: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the settings that are not equal."""
    return tuple(name for name in {**first, **second} if first.get(name) != second.get(name))


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 1
    for _, group in itertools.groupby(order, key=values.__getitem__):
        places = list(group)
        for place in places:
            ranks[place] = start + (len(places) - 1) / 2
        start += len(places)
    return ranks
