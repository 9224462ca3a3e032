"""Explains several runs of one program together: how memory grows with each variable, the largest
value that fits, the smallest GPU.

    report = explain_sweep(points, template=("train.py", "--batch-size", "{batch}"), ...)
    report.lines[0].fixed_bytes, report.lines[0].bytes_per_unit
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from ullage.explain.run import RunReport
from ullage.explain.verdict import ExitCode, Verdict
from ullage.ground.protocol.plain import As, Mark, Only, figure

if TYPE_CHECKING:
    from ullage.explain.compare.fastest import Fastest
    from ullage.facts.gpus.catalog import Gpu

# A peak is the highest of several moments, which grow at different rates: a line is fitted through
# as many of the largest values as lie on it within this share of the peak.
_MAX_DEVIATION = Fraction(1, 100)
_MAX_EXTRAPOLATION = 2
"""Beyond this many times the largest value that was run, another moment may be the peak."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The setting of one run of a sweep: a value for each variable, and the GPU."""

    values: Annotated[tuple[tuple[str, str], ...], Mark.PAIRS]
    gpu: Annotated[Gpu, Only("slug")]


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a sweep."""

    setting: Annotated[Setting, Mark.FLAT]
    report: Annotated[RunReport, As("run")]

    @property
    def allocated_bytes(self) -> int:
        """The peak of live blocks on the device where it was highest."""
        return max((d.totals.peak_allocated_bytes for d in self.report.devices), default=0)

    @property
    def reserved_bytes(self) -> int:
        """The peak of reserved memory on the device where it was highest."""
        return max((d.totals.peak_reserved_bytes for d in self.report.devices), default=0)

    @property
    def used_bytes(self) -> int:
        """The peak of all used memory on the fullest device, with the context's upper bound."""
        return max((d.peak_used_bytes for d in self.report.devices), default=0)

    @property
    def headroom_bytes(self) -> int:
        """The remaining memory of the fullest device."""
        left = (d.headroom_bytes for d in self.report.devices)
        return min(left, default=self.setting.gpu.total_bytes)

    @property
    def fits(self) -> bool:
        """True if the run fits."""
        return self.report.verdict is Verdict.FITS


@dataclass(frozen=True, slots=True)
class Line:
    """Peak = fixed part + bytes per unit x variable: a least-squares fit of the runs that fit.

    Attributes:
        variable: the variable; "batch*seq" is the product of two.
        held: the fixed variables with their values.
        gpu: the slug of the GPU.
        fixed_bytes: the constant part of the allocator's peak.
        bytes_per_unit: the slope of the allocator's peak, rounded to whole bytes.
        from_value: the smallest value for which the line is valid.
        num_points: the number of runs that the line fits.
        deviation_bytes: the largest deviation of a run from the line.
        forecast: the largest integer that fits according to the linear fit of the whole device's
            peak; it is below the smallest value that did not fit, and at most twice the largest
            that fit. None where the fit predicts nothing beyond the runs.
        is_forecast_capped: whether the fit predicts that still larger values fit.
    """

    variable: str
    held: Annotated[tuple[tuple[str, str], ...], Mark.PAIRS]
    gpu: str
    fixed_bytes: int
    bytes_per_unit: int
    from_value: float
    num_points: Annotated[int, As("num_runs")]
    deviation_bytes: int
    forecast: int | None
    is_forecast_capped: bool = False


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The results of a sweep.

    Attributes:
        template: the command line of the program, with {NAME} for each variable.
        variables: each variable with its values, in the order of the command line.
        gpus: the GPUs, in the order of the command line.
        is_unlimited: whether the device had unlimited memory.
        points: one point per run, in the order of the grid; fewer if the sweep was interrupted.
        lines: the linear fits of memory.
        fresh_because: why each run started in a new process, which takes longer; empty if the runs
            were forked from a warm process.
        wall_s: the duration of the whole sweep.
    """

    SCHEMA: ClassVar[str] = "ullage.sweep/1"

    template: Annotated[tuple[str, ...], As("program")]
    variables: Annotated[tuple[tuple[str, tuple[str, ...]], ...], Mark.PAIRS]
    gpus: Annotated[tuple[Gpu, ...], Only("slug")]
    is_unlimited: Annotated[bool, Mark.NO_KEY]
    points: Annotated[tuple[Point, ...], As("runs")]
    lines: tuple[Line, ...]
    fresh_because: Annotated[str, Mark.NULL]
    wall_s: float
    was_interrupted: bool

    @figure
    def exit_code(self) -> ExitCode:
        """0 if any run fits, 1 if none does, 3 if a program failed for a reason of its own."""
        if self.was_interrupted:
            return ExitCode.INTERRUPTED
        verdicts = {point.report.verdict for point in self.points}
        if Verdict.FAILED in verdicts:
            return ExitCode.PROGRAM_FAILED
        return ExitCode.FINE if Verdict.FITS in verdicts else ExitCode.ANSWER_IS_NO

    @figure
    def largest_values(self) -> Annotated[Mapping[str, Any], As("largest")]:
        """The values of the largest settings that fit, by GPU."""
        return {gpu.slug: [dict(each) for each in self.largest(gpu.slug)] for gpu in self.gpus}

    @figure
    def fastest(self) -> tuple[Fastest, ...]:
        """The fastest run on each GPU, where two or more that fit were timed."""
        from ullage.explain.compare.fastest import find_fastest

        return find_fastest(self)

    @figure
    def smallest_gpu(self) -> str | None:
        """The GPU, of several, with the least memory on which every run fits."""
        if len(self.gpus) < 2:
            return None
        not_fitting = {point.setting.gpu.slug for point in self.points if not point.fits}
        fitting = [gpu for gpu in self.gpus if gpu.slug not in not_fitting]
        return min(fitting, key=lambda gpu: gpu.total_bytes).slug if fitting else None

    def largest(self, gpu: str) -> tuple[tuple[tuple[str, str], ...], ...]:
        """Returns the settings that fit on a GPU and that no larger setting that fits exceeds."""
        fitting = [
            (p.setting.values, [(text, parse_number(text)) for _, text in p.setting.values])
            for p in self.points
            if p.fits and p.setting.gpu.slug == gpu
        ]
        return tuple(
            values
            for values, point in fitting
            if not any(_exceeds(other, point) for _, other in fitting)
        )


def explain_sweep(
    points: Sequence[Point],
    *,
    template: tuple[str, ...],
    variables: tuple[tuple[str, tuple[str, ...]], ...],
    gpus: tuple[Gpu, ...],
    fresh_because: str,
    wall_s: float,
    was_interrupted: bool,
) -> SweepReport:
    """Explains a sweep from its runs."""
    return SweepReport(
        template=template,
        variables=variables,
        gpus=gpus,
        is_unlimited=any(point.report.is_unlimited for point in points),
        points=tuple(points),
        lines=tuple(_find_lines(points, variables)),
        fresh_because=fresh_because,
        wall_s=wall_s,
        was_interrupted=was_interrupted,
    )


def parse_number(text: str) -> float | None:
    """Parses a value as a number; returns None for other text, infinities and NaN."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _exceeds(
    other: Sequence[tuple[str, float | None]], point: Sequence[tuple[str, float | None]]
) -> bool:
    """Returns whether a setting is at least as large in each variable and larger in one; values
    that are not numbers must be equal.
    """
    is_larger = False
    for (a, x), (b, y) in zip(other, point, strict=True):
        if x is None or y is None:
            if a != b:
                return False
        elif x < y:
            return False
        else:
            is_larger |= x > y
    return is_larger


def _find_lines(
    points: Sequence[Point], variables: Sequence[tuple[str, tuple[str, ...]]]
) -> Iterator[Line]:
    """Yields a line for each numeric variable, GPU and setting of the other variables, and one for
    the product of all numeric variables if there are several.
    """
    numeric = [
        name
        for name, values in variables
        if len({parse_number(value) for value in values} - {None}) == len(values) > 1
    ]
    groups = [(name,) for name in numeric] + ([tuple(numeric)] if len(numeric) > 1 else [])
    for names in groups:
        by_rest: dict[tuple[tuple[tuple[str, str], ...], str], list[Point]] = {}
        for point in points:
            rest = tuple(pair for pair in point.setting.values if pair[0] not in names)
            by_rest.setdefault((rest, point.setting.gpu.slug), []).append(point)
        for (rest, gpu), members in by_rest.items():
            line = _find_line(members, names, rest, gpu)
            if line is not None:
                yield line


def _find_line(
    points: Sequence[Point], names: tuple[str, ...], held: tuple[tuple[str, str], ...], gpu: str
) -> Line | None:
    """Fits a line through the largest values that fit on the GPU; returns None for fewer than two
    values, or for a product to which the peak is not linear.
    """
    fitting = sorted(
        ((_x_of(point, names), point) for point in points if point.fits), key=itemgetter(0)
    )
    allocated = _fit([(x, point.allocated_bytes) for x, point in fitting])
    used = _fit([(x, point.used_bytes) for x, point in fitting])
    if allocated is None or used is None:
        return None
    if len(names) > 1 and (allocated.start > 0 or len(fitting) < 3):
        return None
    forecast = _forecast(used, fitting, [_x_of(p, names) for p in points if not p.fits])
    farthest = math.floor(_MAX_EXTRAPOLATION * fitting[-1][0])
    return Line(
        variable="*".join(names),
        held=held,
        gpu=gpu,
        fixed_bytes=round(allocated.fixed),
        bytes_per_unit=round(allocated.slope),
        from_value=float(fitting[allocated.start][0]),
        num_points=len(fitting) - allocated.start,
        deviation_bytes=round(allocated.deviation),
        forecast=None if forecast is None else min(forecast, farthest),
        is_forecast_capped=forecast is not None and forecast > farthest,
    )


@dataclass(frozen=True, slots=True)
class _Fit:
    """A line through all points from index `start`."""

    start: int
    fixed: Fraction
    slope: Fraction
    deviation: Fraction


def _fit(points: Sequence[tuple[Fraction, int]]) -> _Fit | None:
    """Fits a least-squares line through as many of the last points as lie on it; returns None for
    fewer than two values.
    """
    for start in range(len(points) - 1):
        through = points[start:]
        if through[0][0] == through[-1][0]:
            return None
        fitted = _least_squares(through, start)
        if fitted.deviation <= _MAX_DEVIATION * max(y for _, y in through):
            return fitted
    return None


def _least_squares(points: Sequence[tuple[Fraction, int]], start: int) -> _Fit:
    """Fits a line in exact arithmetic, so that the same runs give the same bytes everywhere."""
    count = len(points)
    mean_x = sum((x for x, _ in points), Fraction(0)) / count
    mean_y = Fraction(sum(y for _, y in points), count)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum(((x - mean_x) * (y - mean_y) for x, y in points), Fraction(0)) / spread
    fixed = mean_y - slope * mean_x
    return _Fit(start, fixed, slope, max(abs(y - fixed - slope * x) for x, y in points))


def _x_of(point: Point, names: tuple[str, ...]) -> Fraction:
    values = dict(point.setting.values)
    product = Fraction(1)
    for name in names:
        product *= Fraction(float(values[name]))
    return product


def _forecast(
    used: _Fit, fitting: Sequence[tuple[Fraction, Point]], not_fitting: Sequence[Fraction]
) -> int | None:
    """Returns the largest integer whose peak fits the device according to the line; None where no
    value beyond the runs fits.
    """
    last_x, last = fitting[-1]
    xs = [*(x for x, _ in fitting), *not_fitting]
    if last.report.is_unlimited or used.slope <= 0 or any(x.denominator != 1 for x in xs):
        return None
    # The extrapolation starts at the last run, so the line's deviation there has no effect.
    limit_x = math.floor(last_x + last.headroom_bytes / used.slope)
    limit_x = min([limit_x, *(int(x) - 1 for x in not_fitting)])
    return limit_x if limit_x > last_x else None
