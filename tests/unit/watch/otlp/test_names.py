"""What metrics and labels are called in OpenTelemetry, and where they are pushed to."""

from __future__ import annotations

import pytest

from ullage.errors import SpecError
from ullage.watch.exporter.metric import Metric, Type
from ullage.watch.exporter.points import METRICS, Current
from ullage.watch.otlp.endpoint import find_endpoint
from ullage.watch.otlp.names import Kind, attributes_of, instrument_of
from ullage.watch.sample import Sample

ALL = {metric.name: instrument_of(metric) for metric in METRICS}
# How a collector writes units into names for Prometheus.
ENDINGS = {"By": "_bytes", "s": "_seconds", "1": "_ratio", "By/s": "_bytes_per_second", "": ""}


def test_every_metric_has_a_name_there_and_none_of_nvidias() -> None:
    for name, instrument in ALL.items():
        assert instrument.name.startswith(("hw.", "ullage.")), name
        assert "DCGM" not in instrument.name and "dcgm" not in instrument.name


def test_one_name_has_one_unit_and_kind() -> None:
    kinds: dict[str, set[tuple[str, Kind]]] = {}
    for instrument in ALL.values():
        kinds.setdefault(instrument.name, set()).add((instrument.unit, instrument.kind))
    assert all(len(each) == 1 for each in kinds.values())
    shared = [each for each in ALL.values() if each.name in ("hw.errors", "hw.temperature.limit")]
    assert len({each.attributes for each in shared}) == len(shared) == 4


def test_a_collector_gives_our_metrics_the_exporters_names() -> None:
    for name, instrument in ALL.items():
        if name.startswith("ullage_") and "{" not in instrument.unit:
            total = "_total" if instrument.kind is Kind.COUNTER else ""
            assert instrument.name.replace(".", "_") + ENDINGS[instrument.unit] + total == name


def test_units_are_base_units() -> None:
    assert ALL["DCGM_FI_DEV_FB_USED"].factor == 2**20
    assert ALL["DCGM_FI_DEV_GPU_UTIL"].factor == 0.01
    assert ALL["DCGM_FI_DEV_SM_CLOCK"].factor == 1e6
    names = [name for name, each in ALL.items() if each.unit in ("MiBy", "%", "MHz")]
    assert names == []


def test_labels_become_attributes(full_sample: Sample) -> None:
    current = Current(with_names=True)
    assert current.points() is None
    current.publish(full_sample)
    points = [(point.metric.name, point.labels) for point in current.points() or ()]
    labels = next(each for name, each in points if name == "ullage_allocated_bytes")
    assert attributes_of(ALL["ullage_allocated_bytes"], labels) == {
        "hw.id": "GPU-0", "hw.name": "GPU 0", "hw.model": "NVIDIA H100 80GB HBM3",
        "hw.vendor": "NVIDIA", "process.pid": 11, "process.owner": "ada", "container.id": "c" * 64,
        "k8s.pod.uid": "pod-1", "k8s.pod.name": "train-0", "k8s.namespace.name": "research",
        "k8s.container.name": "main", "ullage.slurm.job": "7", "ullage.slurm.step": "0",
        "ullage.rank": 2, "ullage.program": "train.py",
    }  # fmt: skip
    labels = next(each for _, each in points if "GPU_I_ID" in each)
    assert attributes_of(ALL["DCGM_FI_DEV_FB_USED"], labels)["hw.id"] == "GPU-1/3/0"
    assert attributes_of(ALL["DCGM_FI_DEV_FB_USED"], labels)["hw.parent"] == "GPU-1"


def test_points_stay_apart(full_sample: Sample) -> None:
    current = Current()
    current.publish(full_sample)
    points = list(current.points() or ())
    there = set()
    for point in points:
        instrument = instrument_of(point.metric)
        attributes = attributes_of(instrument, point.labels)
        there.add((instrument.name, *sorted(attributes.items())))
    assert len(there) == len(points)


def test_a_gpu_without_a_uuid_has_an_id(unknown_sample: Sample) -> None:
    current = Current()
    current.publish(unknown_sample)
    lost = next(p for p in current.points() or () if p.metric.name == "ullage_gpu_lost")
    assert attributes_of(instrument_of(lost.metric), lost.labels)["hw.id"] == "gpu-0"


def test_a_new_metric_of_ours_needs_no_row() -> None:
    metric = Metric("ullage_new_things_total", Type.COUNTER, "New.")
    assert instrument_of(metric).name == "ullage.new_things"
    assert instrument_of(metric).kind is Kind.COUNTER


@pytest.mark.parametrize(
    ("address", "variables", "endpoint"),
    [
        ("http://c:4318", {}, "http://c:4318/v1/metrics"),
        ("https://c/otlp/", {}, "https://c/otlp/v1/metrics"),
        ("http://c:4318/v1/metrics", {}, "http://c:4318/v1/metrics"),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/"}, "http://c:4318/v1/metrics"),
        ("", {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c/m"}, "http://c/m"),
        (
            "",
            {
                "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c/m",
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://other",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            },
            "http://c/m",
        ),
        ("http://d", {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http://d/v1/metrics"),
    ],
)
def test_where_metrics_go(address: str, variables: dict[str, str], endpoint: str) -> None:
    assert find_endpoint(address, variables) == endpoint


@pytest.mark.parametrize(
    ("address", "variables", "message"),
    [
        ("", {}, "OTEL_EXPORTER_OTLP_ENDPOINT is not set"),
        ("collector:4318", {}, "--otlp holds no web address"),
        ("http://:x", {}, "--otlp holds no web address"),
        ("http://c:99999", {}, "--otlp holds no web address"),
        ("http://ada:hunter2@c", {}, "set OTEL_EXPORTER_OTLP_HEADERS instead"),
        ("http://c/?api-key=hunter2", {}, "set OTEL_EXPORTER_OTLP_HEADERS instead"),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://:hunter2@c"}, "ENDPOINT holds a password"),
        ("", {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "speaks http/protobuf alone"),
    ],
)
def test_where_they_cannot_go(address: str, variables: dict[str, str], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        find_endpoint(address, variables)
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)
