"""The page that Prometheus reads: the last sample, and the alerts that are raised, as text that is
made once for each sample that is asked for.

    exposition = Exposition()
    exposition.publish(sample)
    exposition.page("application/openmetrics-text; version=1.0.0").body

A scrape asks neither the driver nor the jobs. When the sample was taken is a metric of its own, so
that a driver that no longer answers is seen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from ullage.ground.version import __version__
from ullage.operate.doors.metric import Metric, Point, Type, known_labels
from ullage.operate.doors.text_format import write_page
from ullage.operate.watch.alerts.event import Change, Event
from ullage.operate.watch.alerts.outlook import gpu_id
from ullage.operate.watch.exporter.gpu_metrics import GPU_METRICS, gpu_labels, gpu_points
from ullage.operate.watch.exporter.job_metrics import JOB_METRICS, job_points
from ullage.operate.watch.sample import Sample
from ullage.operate.watch.view import view

_KIND: Final = "application/openmetrics-text"
_OPENMETRICS: Final = f"{_KIND}; version=1.0.0; charset=utf-8"
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_MIN_AGE_S: Final = 30.0
_MAX_INTERVALS: Final = 5.0

_INFO: Final = Metric(
    "ullage_exporter_info", Type.GAUGE, "1; the versions of ullage and of the driver."
)
_TIME: Final = Metric(
    "ullage_sample_timestamp_seconds", Type.GAUGE, "When the sample was taken (s since 1970)."
)
_ALERT: Final = Metric(
    "ullage_alert", Type.GAUGE, "1 while an alert of this rule is raised, absent else."
)
METRICS: Final = (_INFO, _TIME, *GPU_METRICS, *JOB_METRICS, _ALERT)


def oldest_s(interval_s: float) -> float:
    """How old the last sample may be, in seconds, where one is taken each interval: after five that
    are missing nothing is said to be current.
    """
    return max(_MIN_AGE_S, _MAX_INTERVALS * interval_s)


@dataclass(frozen=True, slots=True)
class Page:
    """The answer to a scrape."""

    content_type: str
    body: bytes


class Exposition:
    """The last sample, and the alerts that are raised; any thread may ask.

    Args:
        with_names: whether processes are labelled with the names of their programs.
        clock: seconds, for the sample's age.
    """

    def __init__(
        self, *, with_names: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._with_names, self._clock = with_names, clock
        self._lock = threading.Lock()
        self._sample: Sample | None = None
        self._published_s = clock()
        self._alerts: dict[str, Event] = {}
        self._writing = threading.Lock()
        self._pages: dict[bool, Page] = {}  # another one whenever the points are

    def publish(self, sample: Sample) -> None:
        """Takes what is served from now on."""
        with self._lock:
            self._sample, self._published_s = sample, self._clock()
            self._pages = {}

    def note(self, event: Event) -> None:
        """Takes an alert that has been raised or cleared."""
        with self._lock:
            if event.change is Change.RAISED:
                self._alerts[event.incident] = event
            else:
                self._alerts.pop(event.incident, None)
            self._pages = {}

    @property
    def age_s(self) -> float:
        """Seconds since the last sample came, or since the start."""
        return self._clock() - self._published_s

    def page(self, accept: str) -> Page | None:
        """The text in the format that the header "Accept" asks for; None: there is no sample yet.

        Other scrapes wait meanwhile: each of them would make the same page.
        """
        with self._writing:
            with self._lock:
                sample, alerts, pages = self._sample, tuple(self._alerts.values()), self._pages
            if sample is None:
                return None
            # There are two pages, whatever else a client asks for, such as a version.
            is_openmetrics = _KIND in accept
            if is_openmetrics not in pages:
                kind = _OPENMETRICS if is_openmetrics else _TEXT
                points = self._points(sample, alerts)
                pages[is_openmetrics] = Page(
                    kind, write_page(points, is_openmetrics=is_openmetrics)
                )
            return pages[is_openmetrics]

    def _points(self, sample: Sample, alerts: tuple[Event, ...]) -> Iterator[Point]:
        versions = known_labels(
            version=__version__, driver_version=sample.driver_version, Hostname=sample.host
        )
        yield Point(_INFO, versions, 1.0)
        yield Point(_TIME, {}, sample.time_s)
        yield from gpu_points(sample, with_names=self._with_names)
        yield from job_points(view(sample), with_names=self._with_names)
        gpus = {gpu_id(device): gpu_labels(device) for device in sample.devices}
        for event in alerts:
            rule, subject = event.rule, event.subject
            labels = known_labels(
                rule=rule.name, severity=rule.severity.value, pid=subject.pid, rank=subject.rank
            )
            gone = known_labels(gpu=subject.gpu_index)
            yield Point(_ALERT, gpus.get(subject.gpu or "", gone) | labels, 1.0)
