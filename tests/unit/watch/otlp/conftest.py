"""The exporter's samples, and a collector."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.unit.watch.exporter.conftest import full_sample, unknown_sample

__all__ = ["full_sample", "unknown_sample"]

WAIT_S = 60.0


class Collector:
    """An OTLP/HTTP server that keeps what it gets, and answers as the test says."""

    def __init__(self) -> None:
        self.status = 200
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.arrived = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                headers = {name.lower(): value for name, value in self.headers.items()}
                status = collector.status
                with collector.arrived:
                    collector.requests.append((self.path, headers, body))
                    collector.arrived.notify_all()
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", "http://127.0.0.1:9/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def wait_for(self, count: int) -> None:
        """Until so many requests have come."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.requests) >= count, WAIT_S)

    def close(self) -> None:
        """Ends the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(WAIT_S)


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector on loopback."""
    server = Collector()
    yield server
    server.close()


def parse(body: bytes) -> tuple[dict[str, str], dict[str, Any]]:
    """The resource's attributes, and each metric's points as (attributes, value), by the SDK's
    own classes.
    """
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    request = ExportMetricsServiceRequest()
    request.ParseFromString(body)
    (resource,) = request.resource_metrics
    (scope,) = resource.scope_metrics
    metrics: dict[str, Any] = {}
    for metric in scope.metrics:
        kind = metric.WhichOneof("data")
        data = getattr(metric, kind)
        points = [
            ({pair.key: value_of(pair.value) for pair in point.attributes},
             getattr(point, point.WhichOneof("value")))
            for point in data.data_points
        ]  # fmt: skip
        shape = kind if kind == "gauge" else ("sum", data.is_monotonic)
        assert metric.name not in metrics
        metrics[metric.name] = (shape, metric.unit, points)
    return {pair.key: value_of(pair.value) for pair in resource.resource.attributes}, metrics


def value_of(value: Any) -> Any:
    """What an AnyValue holds."""
    return getattr(value, value.WhichOneof("value"))
