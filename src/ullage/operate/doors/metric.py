"""A metric, and its values in a sample.

Point(Metric("ullage_reserved_bytes", Type.GAUGE, "Bytes ..."), {"gpu": "0"}, 2.0**30)
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ullage.ground.printable import printable


class Type(enum.Enum):
    """Prometheus's types. A count whose name cannot end in `_total`, since dcgm-exporter has it
    without, is UNKNOWN: `rate()` takes it all the same.
    """

    GAUGE = "gauge"
    COUNTER = "counter"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric as the page names it; the name of a counter ends in `_total`."""

    name: str
    type: Type
    text: str


class Point(NamedTuple):
    """A value of a metric."""

    metric: Metric
    labels: Mapping[str, str]
    value: float


class Figure(NamedTuple):
    """A metric that is read of a record.

    Attributes:
        metric: what it is exported as.
        field: of the record; an absent one is None.
        factor: to the metric's unit.
    """

    metric: Metric
    field: str
    factor: float = 1.0


def figure(
    field: str, name: str, text: str, factor: float = 1.0, kind: Type = Type.GAUGE
) -> Figure:
    """A field of a record as a metric."""
    return Figure(Metric(name, kind, text), field, factor)


def read_figures(
    figures: Iterable[Figure], record: object, labels: Mapping[str, str]
) -> Iterator[Point]:
    """The values of those that are known."""
    for metric, field, factor in figures:
        value = getattr(record, field)
        if value is not None:
            yield Point(metric, labels, float(value * factor))


def known_labels(**values: str | int | None) -> dict[str, str]:
    """The labels that are known, as texts of one line that can be written in UTF-8."""
    return {name: printable(str(value)) for name, value in values.items() if value is not None}
