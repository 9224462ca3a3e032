"""The page that Prometheus reads: the last sample as text, made once for each sample that is asked
for.

    exposition = Exposition()
    exposition.publish(sample)
    exposition.page("application/openmetrics-text; version=1.0.0").body

A scrape asks neither the driver nor the jobs. When the sample was taken is a metric of its own, so
that a driver that no longer answers is seen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ullage.watch.alerts.event import Event
from ullage.watch.exporter.points import METRICS, Current
from ullage.watch.exporter.text_format import write_page
from ullage.watch.sample import Sample

__all__ = ["METRICS"]

_KIND: Final = "application/openmetrics-text"
_OPENMETRICS: Final = f"{_KIND}; version=1.0.0; charset=utf-8"
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Page:
    """What a scrape is answered with."""

    content_type: str
    body: bytes


class Exposition:
    """The pages of the last sample.

    Args:
        with_names: whether processes are labelled with the names of their programs.
        clock: seconds, for the sample's age.
    """

    def __init__(
        self, *, with_names: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._current = Current(with_names=with_names, clock=clock)
        self._lock = threading.Lock()
        self._pages: dict[bool, Page] = {}
        self._version = 0

    def publish(self, sample: Sample) -> None:
        """Takes what is served from now on."""
        self._current.publish(sample)

    def note(self, event: Event) -> None:
        """Takes an alert that has been raised or cleared."""
        self._current.note(event)

    @property
    def age_s(self) -> float:
        """Seconds since the last sample came, or since the start."""
        return self._current.age_s

    def page(self, accept: str) -> Page | None:
        """The text in the format that the header "Accept" asks for; None: there is no sample yet.

        A lock holds other scrapes back meanwhile: each of them would make the same page.
        """
        with self._lock:
            version, points = self._current.version, self._current.points()
            if points is None:
                return None
            if version != self._version:
                self._pages, self._version = {}, version
            # There are two pages, whatever else a client asks for, such as a version.
            is_openmetrics = _KIND in accept
            if is_openmetrics not in self._pages:
                kind = _OPENMETRICS if is_openmetrics else _TEXT
                body = write_page(points, is_openmetrics=is_openmetrics)
                self._pages[is_openmetrics] = Page(kind, body)
            return self._pages[is_openmetrics]
