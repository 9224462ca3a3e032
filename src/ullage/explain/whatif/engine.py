"""Replays a snapshot's requests under every setting (replays.py), and reports the outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ullage.explain.whatif.conflicts import UNSEEN, find_conflicts
from ullage.explain.whatif.outcomes import Check, OnGpu, Tried, WhatIfReport, outcome_of
from ullage.explain.whatif.packing import Spans, find_packing, lower_bound
from ullage.explain.whatif.replays import ReplayAnswer, ReplayOrder, find_where, replay_all
from ullage.explain.whatif.settings import (
    EXPANDABLE,
    Family,
    Setting,
    list_settings,
    recorded_settings,
)
from ullage.facts.gpus.catalog import Gpu, load_catalog
from ullage.ground.errors import EnvironmentProblem, SnapshotError, SpecError
from ullage.ground.programs.allocator_replay import ATTEMPT
from ullage.log.addresses import platform_of
from ullage.log.blocks import held_before
from ullage.log.replay import Replay, replay
from ullage.log.requests import Requests, find_requests
from ullage.log.rules import make_settings, round_sizes
from ullage.log.snapshot import Action, Snapshot
from ullage.players.phantom.device import PhantomDevice

_MAX_GPUS = 4


@dataclass(frozen=True, slots=True)
class Trace:
    """One device of a snapshot, and how it was recorded."""

    snapshot: Snapshot
    device: int
    replay: Replay
    requests: Requests
    settings: str
    spans: Spans
    lower_bound_bytes: int

    @property
    def is_whole(self) -> bool:
        """True if nothing was reserved before the first event."""
        return not bool((self.replay.segments.birth == -1).any())


def what_if(
    snapshot: Snapshot,
    *,
    python: str | None,
    device: PhantomDevice,
    settings: Sequence[Setting] | None = None,
) -> WhatIfReport:
    """Replays the requests of the device that reserves the most memory in a snapshot.

    Args:
        snapshot: of any program.
        python: the interpreter whose torch has the rules; None: the one that runs ullage.
        device: the simulated GPU of the replays.
        settings: the settings to try beside the recorded ones; None: all known ones.

    Raises:
        SnapshotError: the snapshot has no allocations.
        SpecError: there is no such interpreter, or the snapshot was recorded with an allocator
            other than torch's own.
        EnvironmentProblem: the interpreter has no torch for CUDA, it cannot be started though the
            rules do not know it, or it refuses the recorded settings.
    """
    trace = read_trace(snapshot)
    where = find_where(python, device, snapshot)
    platform = platform_of(snapshot, trace.device)
    if where.build.chooses_by_address:
        requests = find_requests(snapshot, trace.replay, trace.device, platform)
        trace = replace(trace, requests=requests)
    tried = list_settings(trace.settings, is_limited=not device.is_unlimited)
    if settings is not None:
        tried = (tried[0], *settings)

    def order(setting: Setting, device: PhantomDevice) -> ReplayOrder:
        return ReplayOrder(trace.requests, setting.text, device, platform, setting.fraction)

    # The size of the recorded GPU is unknown, so the check runs without end, as it was recorded:
    # where the allocator made room itself.
    endless = order(tried[0], PhantomDevice(device.gpu, is_unlimited=True))
    orders = [replace(endless, before="as_it_lay", ignored=(ATTEMPT,))]
    orders += [order(setting, device) for setting in tried]
    sizes = [tried[0], *(setting for setting in tried[1:] if setting == EXPANDABLE)]
    gpus = _gpus_between(trace) if device.is_unlimited else []
    smaller = [(gpu, setting) for gpu in gpus for setting in sizes]
    orders += [order(setting, PhantomDevice(gpu, is_unlimited=False)) for gpu, setting in smaller]
    checked, *answers = replay_all(orders, where)
    conflicts = find_conflicts(snapshot)
    replayed = [*tried, *(setting for _, setting in smaller)]
    outcomes = [
        _tried(trace, setting, answer, conflicts)
        for setting, answer in zip(replayed, answers, strict=True)
    ]
    compared, on_gpus = tuple(outcomes[: len(tried)]), outcomes[len(tried) :]
    return WhatIfReport(
        device=trace.device,
        num_requests=len(trace.replay.blocks),
        torch=where.build.version,
        gpu=None if device.is_unlimited else device.gpu.slug,
        total_bytes=None if device.is_unlimited else device.gpu.total_bytes,
        context_bytes=None if device.is_unlimited else device.gpu.context_high_bytes,
        is_whole=trace.is_whole,
        check=_check(trace, checked),
        lower_bound_bytes=trace.lower_bound_bytes,
        packing=find_packing(trace.spans),
        tried=compared,
        on_gpus=tuple(
            OnGpu(gpu.slug, gpu.total_bytes, trial)
            for (gpu, _), trial in zip(smaller, on_gpus, strict=True)
        ),
        contradictions=trace.replay.contradictions,
        notes=tuple(_notes(trace, compared, [checked, *answers])),
    )


def read_trace(snapshot: Snapshot) -> Trace:
    """Reads the device with the highest peak of reserved memory.

    Raises: as `what_if` for the snapshot.
    """
    devices = sorted(
        {*snapshot.segments.device.tolist()}
        | {number for number, events in enumerate(snapshot.events) if len(events)}
    )
    replays = {number: replay(snapshot, number) for number in devices}
    filled = {number: replay for number, replay in replays.items() if len(replay.blocks)}
    if not filled:
        raise SnapshotError(
            "the snapshot holds no allocation, so there is nothing to replay; record one with "
            "torch.cuda.memory._record_memory_history()"
        )
    settings = recorded_settings(snapshot.settings)
    if "backend:" in settings and "backend:native" not in settings:
        raise SpecError(
            f"the snapshot was recorded with {settings!r}; what is replayed is torch's own "
            "allocator, so record it without another backend"
        )
    device = max(filled, key=lambda number: _peak_reserved(filled[number]))
    requests = find_requests(snapshot, filled[device], device)
    spans = _spans(snapshot, device, filled[device])
    return Trace(snapshot, device, filled[device], requests, settings, spans, lower_bound(spans))


def _peak_reserved(replay: Replay) -> int:
    return int(held_before(replay.segments, replay.num_events).max())


def _gpus_between(trace: Trace) -> list[Gpu]:
    """The GPUs of the catalogue on which the settings decide whether the program fits: they have
    more memory than the lower bound and less than was reserved. One of each size, the smallest
    first.
    """
    least, most = trace.lower_bound_bytes, _peak_reserved(trace.replay)
    between = {
        gpu.total_bytes: gpu
        for gpu in reversed(load_catalog())
        if least <= gpu.total_bytes - gpu.context_high_bytes < most
    }
    return [between[size] for size in sorted(between)][:_MAX_GPUS]


def _spans(snapshot: Snapshot, device: int, replay: Replay) -> Spans:
    blocks, events = replay.blocks, snapshot.events_of(device)
    failed = np.flatnonzero(events.action == Action.OOM)
    sizes = np.concatenate([blocks.requested_bytes, events.size_bytes[failed]])
    return Spans(
        round_sizes(sizes, make_settings()),
        np.concatenate([blocks.birth, failed]),
        np.concatenate([blocks.death, failed + 1]),
    )


def _tried(
    trace: Trace,
    setting: Setting,
    answer: ReplayAnswer,
    conflicts: Mapping[Family, tuple[str, ...]],
) -> Tried:
    is_expandable = "expandable_segments:True" in setting.text
    against = conflicts.get(Family.EXPANDABLE if is_expandable else setting.family, ())
    if setting.family is Family.RECORDED:
        against = ()
    return Tried(setting, outcome_of(trace.requests, answer), answer.refusal, against)


def _check(trace: Trace, answer: ReplayAnswer) -> Check:
    played = answer.played
    if played is None:
        raise EnvironmentProblem(
            f"this torch refuses the recorded settings {trace.settings!r}: {answer.refusal}; "
            "give the environment of the program with --python"
        )
    table = trace.snapshot.segments
    recorded = sorted(table.total_bytes[table.device == trace.device].tolist())
    check = Check(
        recorded_reserved_bytes=_peak_reserved(trace.replay),
        replayed_reserved_bytes=played.peak_reserved_bytes,
        num_recorded_segments=len(recorded),
        num_replayed_segments=len(played.segments),
        has_same_segments=tuple(recorded) == played.segments,
        reasons=(),
    )
    return check if check.is_exact else replace(check, reasons=tuple(_reasons(trace)))


def _reasons(trace: Trace) -> list[str]:
    """Why a replay may differ from the real run."""
    notes = []
    if not trace.is_whole:
        notes.append(
            "the trace begins in the middle: of what was there before it only the blocks and "
            "segments are known, not the order in which they came"
        )
        lost = int((~trace.replay.blocks.is_exact & (trace.replay.blocks.birth == -1)).sum())
        if lost:
            notes.append(f"the exact sizes of {lost} blocks from before it are not in the file")
    if not trace.snapshot.settings:
        notes.append("the file does not say what the allocator was set to")
    if trace.requests.num_retries:
        notes.append("memory was short when it was recorded, and the allocator gave its cache back")
    if trace.replay.contradictions:
        notes.append(f"the file contradicts itself: {trace.replay.contradictions[0]}")
    notes.append("another version of torch may have other rules than the one that recorded it")
    return notes


def _notes(trace: Trace, tried: Sequence[Tried], answers: Sequence[ReplayAnswer]) -> list[str]:
    notes = []
    if not trace.is_whole:
        notes.append(
            "the trace begins in the middle: what was there before it is allocated first, without "
            "holes, under every setting alike; so compare the settings with each other, not with "
            "what was recorded"
        )
    if trace.requests.num_failed:
        notes.append(
            f"{trace.requests.num_failed} requests failed when it was recorded; here they are made "
            "again, and freed at once where they are met"
        )
    if any("expandable_segments:True" in trial.setting.text for trial in tried[1:]):
        notes.append(UNSEEN)
    # What torch refuses is told where it is listed.
    whys = dict.fromkeys(answer.why_torch for answer in answers if answer.played is not None)
    notes += [f"torch's own allocator was asked: {why}" for why in whys if why]
    return notes
