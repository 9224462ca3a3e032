"""Metrics for OpenTelemetry: what `ullage watch --otlp` is.

with open_push(PushOptions("http://127.0.0.1:4318"), say=print) as push:
    for sample in push.publish(watch_gpus()):
        print(sample.time_s)
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ullage.errors import EnvironmentProblem
from ullage.version import __version__

if TYPE_CHECKING:
    from ullage.watch.alerts.event import Event
    from ullage.watch.exporter.points import Current
    from ullage.watch.otlp.push import Push
    from ullage.watch.sample import Sample


@dataclass(frozen=True, slots=True)
class PushOptions:
    """How metrics are pushed.

    Attributes:
        address: of the collector; empty: OTEL_EXPORTER_OTLP_ENDPOINT has it.
        with_names: whether the names of programs are exported.
        interval_s: between two samples: when five are missing, nothing is pushed.
    """

    address: str
    with_names: bool = False
    interval_s: float = 1.0


class PushedMetrics:
    """Pushes the metrics of a stream of samples, between `with` and its end."""

    def __init__(self, push: Push, current: Current, endpoint: str) -> None:
        self._push, self._current = push, current
        self.endpoint = endpoint
        """Where to."""

    def note(self, event: Event) -> None:
        """Pushes an alert from when it is raised until it is cleared."""
        self._current.note(event)

    def publish(self, stream: Iterator[Sample]) -> Iterator[Sample]:
        """The same samples; each is pushed if it is the latest when metrics are pushed."""
        for sample in stream:
            self._current.publish(sample)
            yield sample

    def __enter__(self) -> Self:
        self._push.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._push.__exit__()


def open_push(options: PushOptions, say: Callable[[str], None]) -> PushedMetrics:
    """What pushes metrics once it is entered.

    Args:
        options: where to, and what.
        say: is told that pushes fail, and that they succeed again.

    Raises:
        SpecError: there is no address, or it is not possible.
        EnvironmentProblem: OpenTelemetry's SDK is not installed.
    """
    from ullage.watch.exporter.points import Current, oldest_s
    from ullage.watch.otlp.endpoint import find_endpoint

    endpoint = find_endpoint(options.address, os.environ)
    try:
        from ullage.watch.otlp.push import Push
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("opentelemetry"):
            raise
        raise EnvironmentProblem(
            "--otlp needs OpenTelemetry's SDK, which is not installed; "
            "install it with: pip install 'ullage[otel]'"
        ) from None
    current = Current(with_names=options.with_names)
    max_age_s = oldest_s(options.interval_s)
    push = Push(endpoint, _resource(), current, max_age_s=max_age_s, say=say)
    return PushedMetrics(push, current, endpoint)


def _resource() -> dict[str, str]:
    """What is known of this process and its host; OTEL_RESOURCE_ATTRIBUTES add to it."""
    from ullage.watch.nvml.cluster import read_cluster

    cluster = read_cluster(Path("/proc/self"))
    attributes = {
        "service.name": os.environ.get("OTEL_SERVICE_NAME") or "ullage",
        "service.version": __version__,
        "host.name": socket.gethostname(),
        "container.id": cluster.container,
        "k8s.pod.uid": cluster.pod,
        "k8s.pod.name": cluster.pod_name,
        "k8s.namespace.name": cluster.pod_namespace,
        "k8s.container.name": cluster.container_name,
    }
    return {name: value for name, value in attributes.items() if value is not None}
