"""Replays the advice of findings through PyTorch's allocator, within the recorded GPU's memory.

    findings = replay_trials(report, derive_trials(report, findings), python=None)

An allocator setting is replayed with the recorded requests. A change of the program is replayed as
a trace in which some blocks are freed earlier or never allocated. If the replay runs out of memory,
the advice is not enough. If it fits, the advice is enough where the trace shows what a step needs:
the trace covers the whole program, or the last steps before the failure are alike. A change with
effects that a trace cannot show, such as recomputation, is not replayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ullage.explain.remedies import room_of, sets_allocator, shows_whole_steps
from ullage.explain.rules.rule import Finding
from ullage.explain.snapshot import DeviceSnapshot, SnapshotReport
from ullage.explain.trial import MakesItFit, Relief, Trial
from ullage.explain.whatif.conflicts import find_conflicts
from ullage.explain.whatif.engine import Trace, read_trace
from ullage.explain.whatif.outcomes import Outcome, outcome_of
from ullage.explain.whatif.replays import ReplayOrder, find_where, replay_all
from ullage.explain.whatif.settings import EXPANDABLE, Family
from ullage.ground.errors import EnvironmentProblem, SnapshotError, SpecError
from ullage.ground.units import format_bytes
from ullage.log.addresses import platform_of
from ullage.log.replay import Replay
from ullage.log.requests import find_requests
from ullage.players.phantom.device import PhantomDevice, choose_device
from ullage.players.phantom.launch import check_platform

# Nobody reads more than this many.
_MAX_REPLAYS = 6
_CUT = "; the trace ends with it, so what comes after was not seen"


def replay_trials(
    report: SnapshotReport,
    findings: Sequence[Finding],
    *,
    python: str | None,
    limit_bytes: int | None = None,
) -> tuple[Finding, ...]:
    """Returns the findings, with the replays' answers for those that arithmetic could not decide.

    Args:
        report: the report of the snapshot.
        findings: the findings with the answers of arithmetic.
        python: the interpreter whose torch replays them; None: the one that runs ullage.
        limit_bytes: the memory of the allocator, for a trace of the whole program; None: the memory
            that it had when the trace ended out of memory.

    Raises:
        SpecError: there is no such interpreter.
        EnvironmentProblem: the interpreter has no torch for CUDA, or torch cannot be started.
    """
    try:
        trace = read_trace(report.snapshot)
    except (SnapshotError, SpecError) as error:
        return tuple(
            finding
            if finding.trial is None or not finding.is_said(MakesItFit.NOT_KNOWN)
            else replace(finding, trial=replace(finding.trial, reason=str(error)))
            for finding in findings
        )
    device = next(device for device in report.devices if device.index == trace.device)
    room = limit_bytes
    if room is None:
        if device.shortage is None or device.shortage.was_survived:
            return tuple(findings)
        room = room_of(device.shortage).limit_bytes
    changes = _find_changes(trace, findings)
    if trace.replay.contradictions or not changes:
        return tuple(findings)
    outcomes = _replay(trace, changes, room, python)
    is_whole = limit_bytes is not None
    return tuple(
        replace(finding, trial=_judge(trace, device, finding, outcomes[number], is_whole=is_whole))
        if number in outcomes
        else finding
        for number, finding in enumerate(findings)
    )


def _find_changes(trace: Trace, findings: Sequence[Finding]) -> dict[int, tuple[str, Replay]]:
    """The settings and lifetimes to replay for findings about this device that arithmetic could not
    decide, by the number of the finding.
    """
    changes = {}
    for number, finding in enumerate(findings):
        if not finding.is_said(MakesItFit.NOT_KNOWN) or finding.device != trace.device:
            continue
        if sets_allocator(finding):
            if not find_conflicts(trace.snapshot).get(Family.EXPANDABLE):
                changes[number] = EXPANDABLE.text, trace.replay
        elif finding.relief is not None and finding.relief.is_whole:
            changes[number] = trace.settings, edit_lives(trace.replay, finding.relief)
    return changes


def edit_lives(lives: Replay, relief: Relief) -> Replay:
    """The lifetimes of a trace after a change. A block that the change avoids gets the smallest
    possible size.
    """
    blocks, numbers = lives.blocks, relief.blocks
    death, sizes = blocks.death.copy(), blocks.requested_bytes.copy()
    if relief.death is None:
        left = (sizes[numbers] * relief.left_frac).astype(np.int64)
        sizes[numbers] = np.maximum(left, 1)
    else:
        # A block that ends with an event is freed before that event requests memory.
        ends = np.maximum(relief.death - 1, blocks.birth[numbers])
        death[numbers] = np.minimum(np.maximum(ends, 0), death[numbers])
    return replace(lives, blocks=replace(blocks, death=death, requested_bytes=sizes))


def _replay(
    trace: Trace, changes: Mapping[int, tuple[str, Replay]], limit_bytes: int, python: str | None
) -> dict[int, Outcome]:
    """The outcome of each change within that much memory, by the number of the finding."""
    check_platform()
    usual = choose_device().gpu
    total = limit_bytes + usual.context_high_bytes  # the allocator can reserve the limit
    device = PhantomDevice(replace(usual, total_bytes=total), is_unlimited=False)
    where = find_where(python, device, trace.snapshot)
    platform = platform_of(trace.snapshot, trace.device)
    outcomes = {}
    for number, (settings, lives) in list(changes.items())[:_MAX_REPLAYS]:
        requests = find_requests(trace.snapshot, lives, trace.device)
        try:
            (answer,) = replay_all([ReplayOrder(requests, settings, where.device, platform)], where)
        except EnvironmentProblem:  # torch was needed, and cannot be started
            continue
        outcome = outcome_of(requests, answer)
        if outcome is not None:
            outcomes[number] = outcome
    return outcomes


def _judge(
    trace: Trace, device: DeviceSnapshot, finding: Finding, outcome: Outcome, *, is_whole: bool
) -> Trial:
    """Judges whether the replay shows that a finding's advice makes the program fit."""
    peak = outcome.peak_allocated_bytes
    reserved = format_bytes(outcome.peak_reserved_bytes)
    reason = f"replayed through PyTorch's allocator, which then reserves up to {reserved}"
    if not outcome.fits:
        return Trial(MakesItFit.NO, "replayed through PyTorch's allocator: out of memory", peak)
    relief = finding.relief
    if is_whole:
        steps = device.course.num_steps
        extent = f"{steps} step{'s' * (steps != 1)}" if steps else "the whole program"
        return Trial(MakesItFit.YES, f"{extent}, recorded without a limit, {reason}", peak)
    if not trace.is_whole:
        return Trial(MakesItFit.NOT_KNOWN, f"{reason}: room, but the trace begins late", peak)
    if shows_whole_steps(relief, device):
        steps = device.course.num_steps
        return Trial(
            MakesItFit.YES, f"{reason}; the {steps} steps before show what the next one needs", peak
        )
    return Trial(MakesItFit.NOT_KNOWN, f"{reason}: room for the request that failed{_CUT}", peak)
