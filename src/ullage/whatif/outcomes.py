"""What came of replays: the records."""

from __future__ import annotations

from dataclasses import dataclass

from ullage.units import MIB
from ullage.whatif.packing import Packing
from ullage.whatif.settings import Setting

# What is not worth a change of settings: less than this share of what is reserved, and than this.
MIN_GAIN_FRAC = 0.02
MIN_GAIN_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the allocator did in one replay.

    Attributes:
        peak_requested_bytes, peak_allocated_bytes, peak_reserved_bytes: from the trace's first
            event on.
        segments: the sizes of the segments at the end, the smallest first.
        num_retries: how often it gave its cache back to make room.
        num_device_allocs: how often it asked the device for memory, or mapped some.
        failed_event: the event at which there was no memory; -1: before the first; None: none.
        num_failed_again: how many of the requests that failed when recorded failed again.
        replay_s: how long it took.
    """

    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    segments: tuple[int, ...]
    num_retries: int
    num_device_allocs: int
    failed_event: int | None
    num_failed_again: int
    replay_s: float

    @property
    def unused_bytes(self) -> int:
        """Reserved at the peak beyond what was ever allocated at once: what fragmentation costs."""
        return self.peak_reserved_bytes - self.peak_allocated_bytes

    @property
    def unused_frac(self) -> float:
        """The same as a share of what is reserved."""
        return self.unused_bytes / max(self.peak_reserved_bytes, 1)

    @property
    def fits(self) -> bool:
        """Whether there was memory for every request."""
        return self.failed_event is None and not self.num_failed_again


@dataclass(frozen=True, slots=True)
class Tried:
    """A setting, and what came of it.

    Attributes:
        outcome: None where this torch refused the setting.
        refusal: what it said then.
        conflicts: why the setting is not for this program.
    """

    setting: Setting
    outcome: Outcome | None
    refusal: str = ""
    conflicts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OnGpu:
    """What came of a setting on a GPU with less memory than was reserved."""

    gpu: str
    total_bytes: int
    tried: Tried


@dataclass(frozen=True, slots=True)
class Check:
    """Whether a replay under the recorded settings comes to what was recorded.

    Attributes:
        recorded_reserved_bytes, replayed_reserved_bytes: the peaks.
        num_recorded_segments, num_replayed_segments: at the end.
        has_same_segments: whether they have the same sizes.
        reasons: why the two may differ; empty where they agree.
    """

    recorded_reserved_bytes: int
    replayed_reserved_bytes: int
    num_recorded_segments: int
    num_replayed_segments: int
    has_same_segments: bool
    reasons: tuple[str, ...]

    @property
    def is_exact(self) -> bool:
        """Whether peak and segments agree."""
        same = self.recorded_reserved_bytes == self.replayed_reserved_bytes
        return same and self.has_same_segments


@dataclass(frozen=True, slots=True)
class WhatIfReport:
    """A snapshot's requests under other settings.

    Attributes:
        device: the index in the snapshot.
        num_requests: allocations, those from before the trace included.
        torch: the version whose allocator it is.
        gpu: the GPU that was played; None: one that never runs out.
        total_bytes: of it.
        context_bytes: of those, what the driver takes.
        is_whole: whether the trace begins with nothing allocated.
        check: replay against recording.
        lower_bound_bytes: the most that is live at once.
        packing: the best one found.
        tried: the settings, the recorded ones first; all begin alike.
        on_gpus: the recorded settings, and expandable segments, on GPUs of the catalogue that have
            more than the lower bound and less than was reserved; empty where a GPU was chosen.
        contradictions: where the file does not agree with itself; nothing is recommended then.
        notes: what to know about the replays.
    """

    device: int
    num_requests: int
    torch: str
    gpu: str | None
    total_bytes: int | None
    context_bytes: int | None
    is_whole: bool
    check: Check
    lower_bound_bytes: int
    packing: Packing
    tried: tuple[Tried, ...]
    on_gpus: tuple[OnGpu, ...]
    contradictions: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def free_bytes(self) -> int | None:
        """What the GPU has beside the driver's context; None where it never runs out."""
        if self.total_bytes is None or self.context_bytes is None:
            return None
        return self.total_bytes - self.context_bytes

    @property
    def is_too_small(self) -> bool:
        """Whether the GPU has less than the lower bound, so that no setting can help."""
        return self.free_bytes is not None and self.free_bytes < self.lower_bound_bytes

    @property
    def baseline(self) -> Tried:
        """The recorded settings, from the same beginning as the others."""
        return self.tried[0]

    @property
    def begins_as_recorded(self) -> bool:
        """Whether the recorded settings, begun as the others are, come to what the check came to;
        they need not where the trace begins in the middle, memory was short, or a GPU was chosen.
        """
        before = self.baseline.outcome
        checked = self.check.replayed_reserved_bytes
        return before is not None and before.peak_reserved_bytes == checked

    @property
    def has_room(self) -> bool:
        """Whether there is memory for every request under a setting that the program may use."""
        return bool(self._fitting())

    def _fitting(self) -> list[Tried]:
        """The settings that may be used, and under which nothing fails."""
        return [
            trial
            for trial in self.tried
            if trial.outcome and trial.outcome.fits and not trial.conflicts
        ]

    @property
    def recommended(self) -> Tried | None:
        """The setting that reserves least, if it is worth a change: it goes with what the program
        does, torch takes it, and on a GPU that runs out it must not.

        Among those within MIN_GAIN_FRAC of the least the one that is tried first, as the table
        begins with the plain ones.
        """
        fitting = self._fitting()
        if not fitting or self.contradictions:
            return None
        least = min(_reserved(trial) for trial in fitting)
        first = next(trial for trial in fitting if _reserved(trial) <= least * (1 + MIN_GAIN_FRAC))
        if first is self.baseline:
            return None
        before = self.baseline.outcome
        if before is None or not before.fits:
            return first
        gain = before.peak_reserved_bytes - _reserved(first)
        is_worth = gain >= max(MIN_GAIN_BYTES, MIN_GAIN_FRAC * before.peak_reserved_bytes)
        return first if is_worth else None


def _reserved(tried: Tried) -> int:
    if tried.outcome is None:
        raise ValueError(f"{tried.setting.text!r} was refused: it has reserved nothing")
    return tried.outcome.peak_reserved_bytes
