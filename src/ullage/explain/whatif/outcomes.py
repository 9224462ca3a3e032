"""The results of replays under other allocator settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar

from ullage.explain.whatif.packing import Packing
from ullage.explain.whatif.replays import Decider, ReplayAnswer
from ullage.explain.whatif.settings import MEANINGS, Family, Setting
from ullage.ground.protocol.plain import As, Mark, Only, figure
from ullage.ground.units import MIB
from ullage.log.requests import Requests
from ullage.log.rules import AllocatorOutcome

# A setting is recommended only if it saves this share of the reserved memory and this many bytes.
MIN_GAIN_FRAC = 0.02
MIN_GAIN_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True)
class Outcome(AllocatorOutcome):
    """The outcome of one replay.

    Attributes:
        failed_event: the event that ran out of memory; -1: before the first event; None: none did.
        decider: whose allocator decided.
    """

    failed_event: int | None
    decider: Annotated[Decider, As("decided_by")]

    @figure
    def num_segments(self) -> int:
        """How many segments there are at the end."""
        return len(self.segments)

    @figure
    def unused_bytes(self) -> int:
        """The peak of reserved memory minus the peak of allocated memory: external fragmentation
        and cache.
        """
        return self.peak_reserved_bytes - self.peak_allocated_bytes

    @property
    def unused_frac(self) -> float:
        """The same as a fraction of the peak of reserved memory."""
        return self.unused_bytes / max(self.peak_reserved_bytes, 1)

    @figure
    def fits(self) -> bool:
        """True if no request ran out of memory."""
        return self.failed_event is None and not self.num_failed_attempts


def outcome_of(requests: Requests, answer: ReplayAnswer) -> Outcome | None:
    """The outcome of a replay of these requests; None where torch refused the setting."""
    played = answer.played
    if played is None:
        return None
    stopped = played.stopped_at
    failed = stopped if stopped in (None, -1) else int(requests.event[stopped])
    return Outcome(**asdict(played), failed_event=failed, decider=answer.decider)


@dataclass(frozen=True, slots=True)
class Tried:
    """A setting with the result of its replay.

    Attributes:
        outcome: None if this torch refused the setting.
        refusal: torch's message in that case.
        conflicts: why this program cannot use the setting.
    """

    setting: Annotated[Setting, Mark.FLAT]
    outcome: Annotated[Outcome | None, Mark.FLAT]
    refusal: Annotated[str, As("refused"), Mark.NULL] = ""
    conflicts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OnGpu:
    """The result of a setting on a GPU with less memory than the recording reserved."""

    gpu: str
    total_bytes: int
    tried: Annotated[Tried, Mark.FLAT]


@dataclass(frozen=True, slots=True)
class Check:
    """The check that a replay under the recorded settings reproduces the recording.

    Attributes:
        recorded_reserved_bytes, replayed_reserved_bytes: the peaks.
        num_recorded_segments, num_replayed_segments: at the end.
        has_same_segments: whether they have the same sizes.
        reasons: why the two may differ; empty if they agree.
    """

    recorded_reserved_bytes: Annotated[int, As("recorded_peak_reserved_bytes")]
    replayed_reserved_bytes: Annotated[int, As("replayed_peak_reserved_bytes")]
    num_recorded_segments: int
    num_replayed_segments: int
    has_same_segments: bool
    reasons: tuple[str, ...]

    @figure
    def is_exact(self) -> bool:
        """True if the peaks and the sizes of the segments agree."""
        same = self.recorded_reserved_bytes == self.replayed_reserved_bytes
        return same and self.has_same_segments


@dataclass(frozen=True, slots=True)
class WhatIfReport:
    """The results of a snapshot's requests under other allocator settings.

    Attributes:
        device: the index of the device in the snapshot.
        num_requests: the number of allocations, including those before the trace.
        torch: the version of torch whose rules replayed the requests.
        gpu: the simulated GPU; None: one with unlimited memory.
        total_bytes: the memory of that GPU; None if unlimited.
        context_bytes: the part of it that the driver context takes.
        is_whole: whether the trace begins with nothing allocated.
        check: the comparison of a replay with the recording.
        lower_bound_bytes: the peak of live memory.
        packing: the best packing that a heuristic found.
        tried: the settings, the recorded ones first; all start from the same state.
        on_gpus: the recorded settings, and expandable segments, on GPUs of the catalogue that have
            more memory than the lower bound and less than was reserved; empty if the user chose a
            GPU.
        contradictions: where the file contradicts itself; then nothing is recommended.
        notes: remarks about the replays.
    """

    SCHEMA: ClassVar[str] = "ullage.what_if/1"

    device: int
    num_requests: int
    torch: str
    gpu: str | None
    total_bytes: int | None
    context_bytes: int | None
    is_whole: Annotated[bool, As("is_whole_trace")]
    check: Check
    lower_bound_bytes: int
    packing: Packing
    tried: tuple[Tried, ...]
    on_gpus: tuple[OnGpu, ...]
    contradictions: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def families(self) -> list[Family]:
        """The families of the settings, in the order of their first settings."""
        return list(dict.fromkeys(tried.setting.family for tried in self.tried[1:]))

    @figure
    def meanings(self) -> Mapping[Family, str]:
        """The effect of each family."""
        return {family: MEANINGS[family] for family in self.families}

    @property
    def free_bytes(self) -> int | None:
        """The GPU's memory without the driver context; None if unlimited."""
        if self.total_bytes is None or self.context_bytes is None:
            return None
        return self.total_bytes - self.context_bytes

    @property
    def is_too_small(self) -> bool:
        """True if the GPU has less memory than the lower bound, so that no setting can help."""
        return self.free_bytes is not None and self.free_bytes < self.lower_bound_bytes

    @property
    def baseline(self) -> Tried:
        """The recorded settings, replayed from the same state as the others."""
        return self.tried[0]

    @property
    def begins_as_recorded(self) -> bool:
        """True if the recorded settings, begun as the others are, come to what the check came to;
        they need not where the trace begins in the middle, memory was short, or a GPU was chosen.
        """
        before = self.baseline.outcome
        checked = self.check.replayed_reserved_bytes
        return before is not None and before.peak_reserved_bytes == checked

    @property
    def has_room(self) -> bool:
        """True if the requests fit under at least one setting that the program can use."""
        return bool(self._fitting())

    def _fitting(self) -> list[Tried]:
        """The settings that the program can use and under which no request fails."""
        return [
            trial
            for trial in self.tried
            if trial.outcome and trial.outcome.fits and not trial.conflicts
        ]

    @figure
    def recommended(self) -> Annotated[Tried | None, Only("setting.text")]:
        """The setting that reserves the least memory, or None if no change is worth it.

        The setting must not conflict with the program, torch must accept it, and no request may
        fail. Among the settings within MIN_GAIN_FRAC of the best, the first one is taken, because
        the list begins with the simplest.
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
