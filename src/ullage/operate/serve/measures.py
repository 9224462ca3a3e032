"""The figures of a server: percentiles by class of request, goodput, and latency by occupancy.

measures = measure(outcome, parse_slo("ttft=1s,tpot=50ms"))
measures.classes[0].ttft_s.p99, measures.goodput_frac
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ullage.ground.protocol.plain import Mark
from ullage.operate.serve.outcome import Floats, Outcome
from ullage.operate.serve.slo import Slo

_EDGES: Final = (0.0, 0.25, 0.5, 0.75, 0.9, 0.97, 1.0)
ALL: Final = "all"


class Percentiles(NamedTuple):
    """Seconds; None: no request has one."""

    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class ClassMeasures:
    """Requests of one class, or all.

    Attributes:
        name: the class.
        num_requests, num_answered: how many there are, and have their last token.
        ttft_s, tpot_s, e2e_s, queue_s: percentiles of the answered ones.
        goodput_frac: the share of all that met the objective; None: there is none.
    """

    name: str
    num_requests: int
    num_answered: int
    ttft_s: Annotated[Percentiles, Mark.NAMED]
    tpot_s: Annotated[Percentiles, Mark.NAMED]
    e2e_s: Annotated[Percentiles, Mark.NAMED]
    queue_s: Annotated[Percentiles, Mark.NAMED]
    goodput_frac: float | None


@dataclass(frozen=True, slots=True)
class OccupancyRow:
    """Requests that arrived at an occupancy of the cache from `low_frac` to `high_frac`."""

    low_frac: float
    high_frac: float
    num_requests: int
    ttft_s: Annotated[Percentiles, Mark.NAMED]
    tpot_s: Annotated[Percentiles, Mark.NAMED]


@dataclass(frozen=True, slots=True)
class Measures:
    """All figures of a run.

    Attributes:
        classes: all requests first, then each class if there are several.
        requests_per_s, output_tokens_per_s: answered, until the last answer.
        good_requests_per_s: those that met the objective; None: there is none.
        num_preempted, num_preemptions: requests that were preempted, and how often all were.
        prefix_hit_frac: the share of the prompts' tokens that were in the cache.
        queue_peak: the most requests that waited at once.
        by_occupancy: latency by the cache's occupancy at the arrival.
        idle_frac: the share of the time in which the device had nothing to do.
    """

    classes: tuple[ClassMeasures, ...]
    requests_per_s: float
    output_tokens_per_s: float
    good_requests_per_s: float | None
    num_preempted: int
    num_preemptions: int
    prefix_hit_frac: float
    queue_peak: int
    by_occupancy: tuple[OccupancyRow, ...]
    idle_frac: float


def measure(outcome: Outcome, slo: Slo | None) -> Measures:
    """The figures of an outcome."""
    traffic, is_answered = outcome.traffic, outcome.is_answered
    everyone = np.ones(len(traffic), dtype=np.bool_)
    classes = [_class(ALL, everyone, outcome, slo)]
    if len(traffic.classes) > 1:
        classes += [
            _class(name, traffic.class_index == index, outcome, slo)
            for index, name in enumerate(traffic.classes)
        ]
    span_s = outcome.duration_s or float("nan")
    good = classes[0].goodput_frac
    prompts = int(traffic.prompt_tokens[is_answered].sum())
    return Measures(
        classes=tuple(classes),
        requests_per_s=float(is_answered.sum()) / span_s,
        output_tokens_per_s=float(outcome.output_tokens.sum()) / span_s,
        good_requests_per_s=None if good is None else good * len(traffic) / span_s,
        num_preempted=int((outcome.num_preemptions > 0).sum()),
        num_preemptions=int(outcome.num_preemptions.sum()),
        prefix_hit_frac=float(outcome.cached_tokens[is_answered].sum()) / prompts if prompts else 0,
        queue_peak=int(outcome.levels.waiting.max(initial=0)),
        by_occupancy=measure_by_occupancy((outcome,)),
        idle_frac=max(0.0, 1 - outcome.device_s / span_s) if outcome.duration_s else 0.0,
    )


def _class(
    name: str, chosen: npt.NDArray[np.bool_], outcome: Outcome, slo: Slo | None
) -> ClassMeasures:
    ttft_s, tpot_s, e2e_s, queue_s = (
        column[chosen]
        for column in (outcome.ttft_s, outcome.tpot_s, outcome.e2e_s, outcome.queue_s)
    )
    goodput = None
    if slo is not None and chosen.any():
        goodput = float(slo.holds(ttft_s, tpot_s, e2e_s).mean())
    return ClassMeasures(
        name, int(chosen.sum()), int(outcome.is_answered[chosen].sum()),
        find_percentiles(ttft_s), find_percentiles(tpot_s),
        find_percentiles(e2e_s), find_percentiles(queue_s), goodput,
    )  # fmt: skip


def find_percentiles(column: Floats) -> Percentiles:
    """The percentiles of the values that there are."""
    finite = column[np.isfinite(column)]
    if not len(finite):
        return Percentiles(None, None, None)
    return Percentiles(*(float(value) for value in np.percentile(finite, (50, 90, 99))))


def measure_by_occupancy(outcomes: Sequence[Outcome]) -> tuple[OccupancyRow, ...]:
    """Latency by the cache's occupancy at the arrival, of the requests of all outcomes."""
    usage_frac, ttft_s, tpot_s = (
        np.concatenate(columns)
        for columns in zip(
            *((each.usage_frac, each.ttft_s, each.tpot_s) for each in outcomes), strict=True
        )
    )
    rows = []
    for low, high in itertools.pairwise(_EDGES):
        is_last = high == _EDGES[-1]
        chosen = (usage_frac >= low) & ((usage_frac < high) | (is_last & (usage_frac <= high)))
        if chosen.any():
            rows.append(
                OccupancyRow(
                    low, high, int(chosen.sum()), find_percentiles(ttft_s[chosen]),
                    find_percentiles(tpot_s[chosen]),
                )
            )  # fmt: skip
    return tuple(rows)
