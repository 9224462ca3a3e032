"""The figures of a server by its load: where more requests cost more than they bring.

    curve = make_curve(served.by_load, slo)
    curve.knee.load, curve.points[0].measures

The knee is the load with the most power: answers a second divided by the mean time of an answer.
Below it a server answers more requests at nearly the same latency, above it requests wait for one
another. It is one of the loads that were run.
Source: L. Kleinrock, "Power and Deterministic Rules of Thumb for Probabilistic Problems in Computer
Communications", ICC 1979.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ullage.ground.protocol.plain import As, Mark, Only, figure
from ullage.operate.serve.measures import Measures, OccupancyRow, measure, measure_by_occupancy
from ullage.operate.serve.run import Loaded
from ullage.operate.serve.slo import Slo


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A load and its figures.

    Attributes:
        load: the factor of the traffic's rate, or of the users of a closed loop.
        offered_per_s: requests that come in a second; None in a closed loop, whose users wait.
        e2e_mean_s: the mean time of an answer; None: there is none.
        measures: all figures.
        usage_mean_frac, usage_peak_frac: the occupancy of the cache.
    """

    load: float
    offered_per_s: float | None
    e2e_mean_s: float | None
    measures: Annotated[Measures, Mark.FLAT]
    usage_mean_frac: float
    usage_peak_frac: float

    @figure
    def power(self) -> float:
        """Answers a second for each second of their mean time; 0 without answers."""
        return self.measures.requests_per_s / self.e2e_mean_s if self.e2e_mean_s else 0.0


@dataclass(frozen=True, slots=True)
class Curve:
    """The figures at all loads.

    Attributes:
        points: by load, ascending.
        knee: the point with the most power.
        best: the point with the most requests a second within the objective; None: there is no
            objective, or no request met it.
        by_occupancy: latency by the cache's occupancy at the arrival, of the requests of all loads.
    """

    points: tuple[CurvePoint, ...]
    knee: Annotated[CurvePoint, Only("load"), As("knee_load")]
    best: Annotated[CurvePoint | None, Only("load"), As("best_load")]
    by_occupancy: tuple[OccupancyRow, ...]


def make_curve(runs: Sequence[Loaded], slo: Slo | None) -> Curve:
    """The curve of one load or more."""
    points = tuple(_point(run, slo) for run in runs)
    good = [point for point in points if point.measures.good_requests_per_s]
    return Curve(
        points,
        max(points, key=lambda point: point.power),
        max(good, key=lambda point: point.measures.good_requests_per_s or 0.0, default=None),
        measure_by_occupancy([run.outcome for run in runs]),
    )


def _point(run: Loaded, slo: Slo | None) -> CurvePoint:
    outcome = run.outcome
    traffic = outcome.traffic
    offered = None
    if traffic.num_users is None and traffic.duration_s:
        offered = len(traffic) / traffic.duration_s
    answered_s = outcome.e2e_s[outcome.is_answered]
    return CurvePoint(
        run.load, offered, float(np.mean(answered_s)) if len(answered_s) else None,
        measure(outcome, slo), outcome.usage_mean_frac, outcome.usage_peak_frac,
    )  # fmt: skip
