"""Replays what findings advise through PyTorch's own allocator, on the room that there was.

    findings = replay_trials(report, derive_trials(report, findings), python=None)

A setting of the allocator is replayed as it is; a change of the program as a trace in which some
blocks end earlier or never come. A replay that has no room is a no. One that has is a yes where the
trace shows what a step needs: it is of the whole program, or its last steps before the failure are
alike. A change that does more to memory than a trace can show, such as computing something again,
is not replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ullage.errors import EnvironmentProblem, SnapshotError, SpecError
from ullage.explain.remedies import room_of, sets_allocator, shows_whole_steps
from ullage.explain.rules.rule import Finding
from ullage.explain.snapshot import DeviceSnapshot, SnapshotReport
from ullage.explain.trial import MakesItFit, Relief, Trial
from ullage.native.libraries import LIBRARY_DIR
from ullage.phantom.device import PhantomDevice, choose_device
from ullage.phantom.launch import check_platform, run_directory
from ullage.phantom.program import resolve_program
from ullage.phantom.torch_build import check_torch, find_torch
from ullage.programs.allocator_replay import RETRY
from ullage.protocol.run import Platform
from ullage.trace.addresses import platform_of
from ullage.trace.replay import Replay
from ullage.units import format_bytes
from ullage.whatif.child import REPLAYER, Where, replaying
from ullage.whatif.conflicts import find_conflicts
from ullage.whatif.engine import Trace, outcome_of, read_trace
from ullage.whatif.outcomes import Outcome
from ullage.whatif.requests import find_requests
from ullage.whatif.settings import EXPANDABLE, Family

# Each replay of a change is a process of its own: as many as people read.
_MAX_REPLAYS = 6
_CUT = "; the trace ends with it, so what comes after was not seen"


@dataclass(frozen=True, slots=True)
class _Order:
    """A replay to make: of which finding, under which settings, of which lives."""

    number: int
    settings: str
    lives: Replay


def replay_trials(
    report: SnapshotReport,
    findings: Sequence[Finding],
    *,
    python: str | None,
    limit_bytes: int | None = None,
) -> tuple[Finding, ...]:
    """The findings with what replays say of those that arithmetic left open.

    Args:
        report: of the snapshot.
        findings: with what arithmetic says.
        python: the interpreter whose torch is asked; None: the one that runs ullage.
        limit_bytes: what the allocator may have, for a trace of the whole program; None: what it
            had where the trace ends out of memory.

    Raises:
        SpecError: there is no such interpreter.
        EnvironmentProblem: there is no torch for CUDA, or it cannot be started.
    """
    try:
        trace = read_trace(report.snapshot)
    except (SnapshotError, SpecError) as error:
        return tuple(_unanswered(finding, str(error)) for finding in findings)
    device = next(device for device in report.devices if device.index == trace.device)
    room = limit_bytes
    if room is None:
        if device.shortage is None or device.shortage.was_survived:
            return tuple(findings)
        room = room_of(device.shortage).limit_bytes
    orders = list(_orders(trace, findings))[:_MAX_REPLAYS]
    if trace.replay.contradictions or not orders:
        return tuple(findings)
    outcomes = _replay(trace, orders, room, python)
    is_whole = limit_bytes is not None
    return tuple(
        replace(finding, trial=_judge(trace, device, finding, outcomes[number], is_whole=is_whole))
        if number in outcomes
        else finding
        for number, finding in enumerate(findings)
    )


def _unanswered(finding: Finding, why: str) -> Finding:
    if finding.trial is None or finding.trial.makes_it_fit is not MakesItFit.NOT_TRIED:
        return finding
    return replace(finding, trial=replace(finding.trial, reason=why))


def _orders(trace: Trace, findings: Sequence[Finding]) -> list[_Order]:
    """What arithmetic left open, of the device that is replayed."""
    orders = []
    for number, finding in enumerate(findings):
        is_open = finding.trial is not None and finding.trial.makes_it_fit is MakesItFit.NOT_TRIED
        if not is_open or finding.device != trace.device:
            continue
        if sets_allocator(finding):
            if not find_conflicts(trace.snapshot).get(Family.EXPANDABLE):
                orders.append(_Order(number, EXPANDABLE.text, trace.replay))
        elif finding.relief is not None and finding.relief.is_whole:
            lives = edit_lives(trace.replay, finding.relief)
            orders.append(_Order(number, trace.settings, lives))
    return orders


def edit_lives(lives: Replay, relief: Relief) -> Replay:
    """The lives of a trace under a relief. What never comes is asked for as the least there is."""
    blocks, numbers = lives.blocks, relief.blocks
    death, sizes = blocks.death.copy(), blocks.requested_bytes.copy()
    if relief.death is None:
        left = (sizes[numbers] * relief.left_frac).astype(np.int64)
        sizes[numbers] = np.maximum(left, 1)
    else:
        # What ends with an event is gone before that asks for memory.
        ends = np.maximum(relief.death - 1, blocks.birth[numbers])
        death[numbers] = np.minimum(np.maximum(ends, 0), death[numbers])
    return replace(lives, blocks=replace(blocks, death=death, requested_bytes=sizes))


def _replay(
    trace: Trace, orders: Sequence[_Order], limit_bytes: int, python: str | None
) -> dict[int, Outcome]:
    """What the allocator does with each, where it may have so much; by the finding's number."""
    check_platform()
    interpreter = resolve_program((str(REPLAYER),), python).python
    build = check_torch(find_torch(interpreter), LIBRARY_DIR)
    where = Where(interpreter, build, _device_of(limit_bytes))
    outcomes = {}
    with ExitStack() as stack:
        waiting = []
        for order in orders:
            directory = stack.enter_context(run_directory())
            requests = find_requests(trace.snapshot, order.lives, trace.device)
            timing = _told(order, where.device, platform_of(trace.snapshot, trace.device))
            finish = stack.enter_context(replaying(requests, [timing], where, directory))
            waiting.append((order.number, replace(trace, requests=requests), finish))
        for number, edited, finish in waiting:
            try:
                answer = finish()[0]
            except EnvironmentProblem:  # such as a torch that does not know the setting
                continue
            if "error" not in answer:
                outcomes[number] = outcome_of(edited, answer)
    return outcomes


def _told(order: _Order, device: PhantomDevice, platform: Platform) -> dict[str, Any]:
    return {
        "number": 0,
        "settings": order.settings,
        "device": device.environment_text(),
        "platform": platform.value,
        "fraction": None,
        "before": "packed",
        "ignored": [RETRY],
    }


def _device_of(limit_bytes: int) -> PhantomDevice:
    """A device on which the allocator may have so much."""
    usual = choose_device().gpu
    total = limit_bytes + usual.context_high_bytes
    return PhantomDevice(replace(usual, total_bytes=total), is_unlimited=False)


def _judge(
    trace: Trace, device: DeviceSnapshot, finding: Finding, outcome: Outcome, *, is_whole: bool
) -> Trial:
    """What a replay says of a finding."""
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
        return Trial(MakesItFit.NOT_TRIED, f"{reason}: room, but the trace begins late", peak)
    if shows_whole_steps(relief, device):
        steps = device.course.num_steps
        return Trial(
            MakesItFit.YES, f"{reason}; the {steps} steps before show what the next one needs", peak
        )
    return Trial(MakesItFit.NOT_TRIED, f"{reason}: room for the request that failed{_CUT}", peak)


__all__ = ["edit_lives", "replay_trials"]
