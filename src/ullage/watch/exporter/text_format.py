"""Prometheus's text format and OpenMetrics 1.0 of points, as prometheus_client writes them.

    write_page(points, is_openmetrics=True).decode()

prometheus_client escapes and sorts the labels of each point anew, which takes 10 ms for 8 GPUs with
100 processes. Most labels are those of the sample before, so their text is kept here. The tests
hold both formats against prometheus_client's, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client.utils import floatToGoString

from ullage.watch.exporter.metric import Metric, Point, Type

_MAX_KEPT: Final = 20_000
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_PLAIN_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})
_label_texts: dict[tuple[tuple[str, str], ...], str] = {}


def write_page(points: Iterable[Point], *, is_openmetrics: bool) -> bytes:
    """All points by metric, in the order in which the metrics first come; of points of one metric
    with the same labels the first counts.
    """
    families: dict[Metric, dict[str, str]] = {}
    # The points of a GPU share one mapping of labels, which the points keep alive meanwhile.
    texts: dict[int, str] = {}
    points = tuple(points)
    for metric, labels, value in points:
        text = texts.get(id(labels))
        if text is None:
            text = texts[id(labels)] = _label_text(labels)
        family = families.setdefault(metric, {})
        if text not in family:
            number = floatToGoString(value)  # type: ignore[no-untyped-call]
            family[text] = f"{metric.name}{text} {number}\n"
    parts = []
    for metric, family in families.items():
        parts.append(_header(metric, is_openmetrics=is_openmetrics))
        parts += family.values()
    if is_openmetrics:
        parts.append("# EOF\n")
    return "".join(parts).encode()


def _label_text(labels: Mapping[str, str]) -> str:
    """The labels in braces, sorted and escaped; empty without any."""
    if not labels:
        return ""
    key = tuple(labels.items())
    text = _label_texts.get(key)
    if text is None:
        if len(_label_texts) >= _MAX_KEPT:  # processes come and go
            _label_texts.clear()
        pairs = (f'{name}="{value.translate(_ESCAPES)}"' for name, value in sorted(key))
        text = _label_texts[key] = f"{{{','.join(pairs)}}}"
    return text


def _header(metric: Metric, *, is_openmetrics: bool) -> str:
    if is_openmetrics:  # there a counter's family is named without its ending
        name, kind = metric.name.removesuffix("_total"), metric.type.value
        text = metric.text.translate(_ESCAPES)
    else:
        name = metric.name
        kind = "untyped" if metric.type is Type.UNKNOWN else metric.type.value
        text = metric.text.translate(_PLAIN_ESCAPES)
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
