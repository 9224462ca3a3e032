"""Prometheus's text format and OpenMetrics 1.0 of points, as prometheus_client writes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import exposition
from prometheus_client.core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from ullage.operate.doors.metric import Metric, Point

_END: Final = "_total"  # of a counter, whose family is named without it


class _Points(Collector):
    def __init__(self, points: Iterable[Point]) -> None:
        self._points = points

    def collect(self) -> Iterator[Family]:
        """The points by metric, in the order in which the metrics first come; of points of one
        metric with the same labels the first counts.
        """
        families: dict[Metric, Family] = {}
        keys: set[tuple[Metric, frozenset[tuple[str, str]]]] = set()
        for metric, labels, value in self._points:
            key = (metric, frozenset(labels.items()))
            if key in keys:
                continue
            keys.add(key)
            if metric not in families:
                name = metric.name.removesuffix(_END)
                families[metric] = Family(name, metric.text, metric.type.value)
            families[metric].add_sample(metric.name, dict(labels), value)
        yield from families.values()


def write_page(points: Iterable[Point], *, is_openmetrics: bool) -> bytes:
    """All points."""
    write = openmetrics.generate_latest if is_openmetrics else exposition.generate_latest
    page: bytes = write(_Points(points))
    return page
