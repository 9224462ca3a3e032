"""Which run of a sweep is the fastest by the clock, and which are not surely slower.

Sizes of one program are compared by the seconds of a token, at common costs (clock/compare.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from ullage.clock.compare import Order, compare
from ullage.clock.step_time import Interval
from ullage.ground.protocol.plain import As, Mark, Only, figure

if TYPE_CHECKING:
    from ullage.explain.compare.sweep import Point, SweepReport


@dataclass(frozen=True, slots=True)
class Fastest:
    """The fastest run on a GPU.

    Attributes:
        gpu: its name in the catalogue.
        point: the run.
        alike: those that are about as fast: the order is not sure.
        tokens_per_s: of the run; 0: the number of tokens is not known, and steps are compared.
    """

    gpu: str
    point: Annotated[Point, Only("setting.values"), As("values"), Mark.PAIRS]
    alike: Annotated[tuple[Point, ...], Mark.NO_KEY]
    tokens_per_s: Annotated[float, Mark.NULL]

    @figure
    def about_as_fast(self) -> Sequence[Mapping[str, str]]:
        """The values of those that are about as fast."""
        return [dict(point.setting.values) for point in self.alike]


def find_fastest(report: SweepReport) -> tuple[Fastest, ...]:
    """The fastest run on each GPU, where two or more that fit were timed."""
    results = []
    for gpu in report.gpus:
        points = [
            point
            for point in report.points
            if point.setting.gpu.slug == gpu.slug and point.fits and point.report.time is not None
        ]
        if len(points) < 2:
            continue
        has_tokens = all(p.report.time and p.report.time.num_tokens for p in points)
        units = [_unit(point, has_tokens=has_tokens) for point in points]
        best = min(range(len(points)), key=lambda place: units[place].s)
        alike = tuple(
            point
            for point, unit in zip(points, units, strict=True)
            if point is not points[best] and compare(unit, units[best]).order is not Order.SLOWER
        )
        rate = 1 / units[best].s if has_tokens else 0.0
        results.append(Fastest(gpu.slug, points[best], alike, rate))
    return tuple(results)


def _unit(point: Point, *, has_tokens: bool) -> Interval:
    time = point.report.time
    if time is None:
        raise RuntimeError("a run that was not timed")
    num = time.num_tokens if has_tokens else 1
    return Interval(*(seconds / num for seconds in time.extremes or time.step))
