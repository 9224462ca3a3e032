"""The state of now as points of metrics, for whatever exports them: the last sample, and the alerts
that are raised.

    current = Current(with_names=False)
    current.publish(sample)
    current.points()        # None before the first sample
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from ullage.version import __version__
from ullage.watch.alerts.event import Change, Event
from ullage.watch.alerts.outlook import gpu_id
from ullage.watch.exporter.gpu_metrics import GPU_METRICS, gpu_points
from ullage.watch.exporter.job_metrics import JOB_METRICS, job_points
from ullage.watch.exporter.metric import Metric, Point, Type, gpu_labels, known_labels
from ullage.watch.sample import Sample
from ullage.watch.view import view

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


class Current:
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
        self.version = 0
        """Another one whenever the points are."""

    def publish(self, sample: Sample) -> None:
        """Takes what is exported from now on."""
        with self._lock:
            self._sample, self._published_s = sample, self._clock()
            self.version += 1

    def note(self, event: Event) -> None:
        """Takes an alert that has been raised or cleared."""
        with self._lock:
            if event.change is Change.RAISED:
                self._alerts[event.incident] = event
            else:
                self._alerts.pop(event.incident, None)
            self.version += 1

    @property
    def age_s(self) -> float:
        """Seconds since the last sample came, or since the start."""
        return self._clock() - self._published_s

    def points(self) -> Iterator[Point] | None:
        """All points; None: there is no sample yet."""
        with self._lock:
            sample, alerts = self._sample, tuple(self._alerts.values())
        return None if sample is None else self._points(sample, alerts)

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
