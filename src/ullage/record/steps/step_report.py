"""What a recording does as the program goes on: the peaks of each step, and what is published, at
the end of a step and at the marks within one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ullage.record.pressure.gauge import PressureGauge
from ullage.record.process.publication import Publication
from ullage.record.steps.scaler_skips import ScalerSkips
from ullage.record.steps.step_peaks import StepPeaks

_BEGUN = {f"{phase}_begin": phase for phase in ("forward", "backward", "optimizer")}


class StepReport:
    """Steps and phases, as they are noted and published.

    Args:
        step_peaks: where the peaks of steps go.
        publication, skips: what is published, and the skipped steps that are a part of it.
        pressure: reads the allocator's counters, and is told of the steps.

    Attributes:
        on_step: is told of each step: allocated and reserved bytes at most, and its seconds.
    """

    def __init__(
        self,
        step_peaks: StepPeaks,
        publication: Publication,
        skips: ScalerSkips,
        pressure: PressureGauge,
    ) -> None:
        self._step_peaks = step_peaks
        self._publication = publication
        self._skips = skips
        self._pressure = pressure
        self._phase: str | None = None  # None where marks are not noted: in the mode counters
        self._began_s = time.monotonic()
        self.on_step: Callable[[int, int, float], None] = lambda *_: None

    def end_step(self) -> None:
        """A step has ended."""
        now_s = time.monotonic()
        allocated_bytes, reserved_bytes = max(self._pressure.take_levels(), default=(0, 0))
        seconds, self._began_s = now_s - self._began_s, now_s
        self._step_peaks.add(allocated_bytes, reserved_bytes, seconds)
        self._publication.note_step(allocated_bytes, reserved_bytes, seconds)
        self._pressure.add_step(allocated_bytes, reserved_bytes, seconds)
        self.publish()
        self.on_step(allocated_bytes, reserved_bytes, seconds)

    def note_mark(self, kind: str) -> None:
        """A phase begins, or has ended. What begins is published if that is due: it may take long,
        or never end.
        """
        self._phase = _BEGUN.get(kind)
        if self._phase is not None:
            self.publish()

    def publish(self, *, is_due: bool = False) -> None:
        """At most once a second, or at once."""
        self._publication.publish(self._phase, self._skips.count, is_due=is_due)
