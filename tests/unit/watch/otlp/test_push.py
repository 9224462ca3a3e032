"""What a collector gets, read by OpenTelemetry's own classes; and what is said when it fails."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.unit.watch.otlp.conftest import WAIT_S, Collector, parse

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from ullage.watch.alerts.defaults import DEFAULTS
from ullage.watch.alerts.engine import Engine
from ullage.watch.exporter.points import Current
from ullage.watch.otlp.names import attributes_of, instrument_of
from ullage.watch.otlp.push import Push
from ullage.watch.sample import Sample

GIB = 2**30


class Lines:
    """What is said, by any thread."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()

    def __call__(self, line: str) -> None:
        with self._changed:
            self.lines.append(line)
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        """Until so many lines were said."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.lines) >= count, WAIT_S)


@pytest.fixture
def lines() -> Lines:
    """What pushes say."""
    return Lines()


@pytest.fixture
def push(collector: Collector, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`with push(current): ...` pushes to the collector ten times a second."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")

    @contextmanager
    def run(current: Current, url: str = "", max_age_s: float = 1e9) -> Iterator[None]:
        endpoint = f"{url or collector.url}/v1/metrics"
        resource = {"service.name": "ullage", "host.name": "gpu-host"}
        with Push(endpoint, resource, current, max_age_s=max_age_s, say=lines):
            yield

    return run


def points_of(metrics: dict[str, Any], name: str, **attributes: Any) -> list[float]:
    """The values of the points that have these attributes, with dots for underscores."""
    wanted = {key.replace("__", "."): value for key, value in attributes.items()}
    points = metrics[name][2]
    return [value for labels, value in points if wanted.items() <= labels.items()]


def test_a_collector_gets_every_point(
    full_sample: Sample, collector: Collector, push: Any, lines: Lines, monkeypatch: Any
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    current = Current()
    current.publish(full_sample)
    with push(current):
        collector.wait_for(1)
    path, headers, body = collector.requests[0]
    assert path == "/v1/metrics"
    assert headers["content-type"] == "application/x-protobuf"
    assert headers["authorization"] == "Bearer s3cret"
    resource, metrics = parse(body)
    assert (resource["service.name"], resource["host.name"]) == ("ullage", "gpu-host")
    assert resource["deployment.environment.name"] == "test"
    assert sum(len(points) for *_, points in metrics.values()) == len(list(current.points() or ()))
    assert metrics["hw.gpu.memory.usage"][:2] == (("sum", False), "By")
    assert metrics["hw.gpu.utilization"][:2] == ("gauge", "1")
    assert metrics["hw.errors"][:2] == (("sum", True), "{error}")
    assert metrics["ullage.alloc_retries"][0] == ("sum", True)
    assert points_of(metrics, "hw.gpu.memory.usage", hw__id="GPU-0") == [50 * GIB]
    assert points_of(metrics, "hw.gpu.utilization", hw__id="GPU-0") == [pytest.approx(0.62)]
    assert points_of(metrics, "hw.errors", hw__id="GPU-0", error__type="corrected") == [5]
    assert points_of(metrics, "hw.power", hw__id="GPU-0", hw__type="gpu") == [528.5]
    critical = {"hw__limit_type": "high.critical", "hw__id": "GPU-0"}
    assert points_of(metrics, "hw.temperature.limit", **critical) == [92]
    job = {"process__pid": 11, "k8s__pod__uid": "pod-1", "container__id": "c" * 64}
    assert points_of(metrics, "ullage.allocated", **job) == [20 * GIB]
    assert points_of(metrics, "ullage.forecast", **job) == [pytest.approx(13.0)]
    assert lines.lines == []


def test_names_without_ours_are_those_of_the_conventions(full_sample: Sample) -> None:
    def values_in(*modules: str) -> set[object]:
        loaded = (importlib.import_module(f"opentelemetry.semconv.{name}") for name in modules)
        return {
            value for module in loaded for name, value in vars(module).items() if name.isupper()
        }

    metrics = values_in("_incubating.metrics.hw_metrics")
    topics = ("hw", "process", "container", "k8s", "error", "service")
    attributes = values_in(*(f"_incubating.attributes.{topic}_attributes" for topic in topics))
    current = Current(with_names=True)
    current.publish(full_sample)
    for metric, labels, _ in current.points() or ():
        instrument = instrument_of(metric)
        names = {*attributes_of(instrument, labels)}
        assert instrument.name.startswith("ullage.") or instrument.name in metrics
        assert {name for name in names if not name.startswith("ullage.")} <= attributes


def test_the_latest_sample_is_pushed_and_an_old_one_is_not(
    full_sample: Sample, unknown_sample: Sample, collector: Collector, push: Any
) -> None:
    now_s = [0.0]
    current = Current(clock=lambda: now_s[0])
    with push(current, max_age_s=30.0):
        current.publish(full_sample)
        collector.wait_for(1)
        current.publish(unknown_sample)
        count = len(collector.requests)
        collector.wait_for(count + 2)
    _, metrics = parse(collector.requests[count + 1][2])
    assert "hw.gpu.memory.usage" not in metrics, "what is gone is gone"
    assert points_of(metrics, "ullage.gpu_lost", hw__id="gpu-0") == [1]
    collector.requests.clear()
    now_s[0] = 100.0
    with push(current, max_age_s=30.0):
        pass
    for _, _, body in collector.requests:
        assert b"ullage." not in body and b"hw." not in body, "there is no point"


def test_alerts_are_pushed_while_they_are_raised(
    unknown_sample: Sample, collector: Collector, push: Any
) -> None:
    current = Current()
    engine = Engine([rule for rule in DEFAULTS if rule.name == "gpu-lost"])
    for event in engine.take(unknown_sample):
        current.note(event)
    current.publish(unknown_sample)
    with push(current):
        collector.wait_for(1)
    _, metrics = parse(collector.requests[0][2])
    assert points_of(metrics, "ullage.alert", ullage__rule="gpu-lost", hw__name="GPU 0") == [1]


def test_a_failure_is_said_once_and_so_is_its_end(
    full_sample: Sample,
    collector: Collector,
    push: Any,
    lines: Lines,
    monkeypatch: Any,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither headers, of which one is malformed, nor the address's path are said or logged."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=s3cret,malformed s3cret")
    current = Current()
    current.publish(full_sample)
    collector.status = 401
    loggers = [logging.getLogger(name) for name in ("opentelemetry", "urllib3")]
    before = [(logger.propagate, list(logger.handlers)) for logger in loggers]
    with push(current):
        collector.wait_for(3)
        collector.status = 200
        lines.wait_for(2)
    assert lines.lines == [
        "OTLP to 127.0.0.1: metrics are not delivered: the server answered 401",
        "OTLP to 127.0.0.1: metrics are delivered again",
    ]
    assert "s3cret" not in "".join((*capfd.readouterr(), caplog.text))
    assert [(logger.propagate, list(logger.handlers)) for logger in loggers] == before


def test_a_redirection_takes_nothing_elsewhere(
    full_sample: Sample, collector: Collector, push: Any
) -> None:
    """The address elsewhere refuses connections, which would be the reason that is said."""
    current = Current()
    current.publish(full_sample)
    collector.status = 307
    with push(current):
        collector.wait_for(2)
    assert {path for path, *_ in collector.requests} == {"/v1/metrics"}


def test_a_collector_that_is_not_there_holds_nobody_up(
    full_sample: Sample, push: Any, lines: Lines, collector: Collector
) -> None:
    current = Current()
    current.publish(full_sample)
    with push(current, url="http://127.0.0.1:9"):
        lines.wait_for(1)
        current.publish(full_sample)
    assert "OTLP to 127.0.0.1: metrics are not delivered: " in lines.lines[0]
    assert collector.requests == []
