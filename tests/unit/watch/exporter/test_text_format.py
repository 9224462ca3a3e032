"""Both formats beside prometheus_client's own, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from ullage.operate.doors.metric import Metric, Point, Type
from ullage.operate.doors.text_format import write_page

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
METRICS = (
    Metric("DCGM_FI_DEV_GPU_TEMP", Type.GAUGE, 'Temperature ("hot" is \\ bad\nfor it).'),
    Metric("ullage_alloc_retries_total", Type.COUNTER, "Retries."),
    Metric("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", Type.UNKNOWN, "Errors."),
)
LABELS = st.dictionaries(
    st.sampled_from(["gpu", "UUID", "pid", "program"]),
    st.text(st.characters(codec="utf-8"), max_size=12),
    max_size=4,
)
POINTS = st.lists(
    st.builds(Point, st.sampled_from(METRICS), LABELS, st.floats()),
    max_size=12,
    unique_by=lambda point: (point.metric.name, frozenset(point.labels.items())),
)


class Families(Collector):
    """The points as prometheus_client takes them."""

    def __init__(self, points: list[Point]) -> None:
        self.points = points

    def collect(self) -> Iterator[Family]:
        """A family of each metric."""
        families: dict[str, Family] = {}
        for metric, labels, value in self.points:
            name = metric.name.removesuffix("_total")
            family = families.setdefault(name, Family(name, metric.text, metric.type.value))
            family.add_sample(metric.name, dict(labels), value)
        return iter(families.values())


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
@given(points=POINTS)
def test_the_page_is_that_of_prometheus_client(accept: str, points: list[Point]) -> None:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Families(points))
    encode, _ = choose_encoder(accept)
    assert write_page(points, is_openmetrics=bool(accept)) == encode(registry)


def test_of_equal_labels_the_first_counts() -> None:
    labels = {"gpu": "0", "pid": "7"}
    swapped = {"pid": "7", "gpu": "0"}
    page = write_page([Point(METRICS[0], labels, 1.0), Point(METRICS[0], swapped, 2.0)],
                      is_openmetrics=False)  # fmt: skip
    assert page.count(b'{gpu="0",pid="7"}') == 1 and page.endswith(b" 1.0\n")
