"""The warnings that a reader of a run should know before trusting its verdict."""

from __future__ import annotations

from collections.abc import Sequence

from ullage.explain.device import DeviceReport
from ullage.explain.host import HostMemory, host_memory
from ullage.explain.moments.steps import StepPeak
from ullage.ground.units import MIB, format_bytes
from ullage.log.model import MarkKind, OutOfMemory, Record

_SETTLED_FRAC = 0.005
"""Peaks of two steps that differ by no more than this fraction are called the same."""
# What is told of pinned memory that was not asked for.
_MIN_ROUNDING_BYTES, _ROUNDING_FRAC = 64 * MIB, 0.25


def find_warnings(
    records: Sequence[Record],
    devices: Sequence[tuple[str, DeviceReport]],
    *,
    lowest_headroom_bytes: int | None,
    fits: bool,
) -> tuple[str, ...]:
    """The warnings of a run, the processes' own first, each once.

    `devices` has each with how to name it, such as " on device 1".
    `lowest_headroom_bytes` is the lower end of what is left, None on a device without limit.
    """
    warnings = [text for record in records for text in record.warnings]
    if not records and fits:  # else how it failed says more
        warnings.append("the program did not use a GPU: there is no device memory to report")
    warnings += _survived_ooms(records, fits=fits)
    warnings += _rounded_pinned(host_memory(records))
    # One request is not like the next, so their peaks need not settle.
    has_requests = any(record.requests for record in records)
    for which, device in devices if fits and not has_requests else ():
        warnings += _unsettled_steps(device, which)
    kinds = [[mark.kind for mark in record.marks] for record in records]
    if fits and any(
        row.count(MarkKind.STEP) == 1 and MarkKind.OPTIMIZER_BEGIN in row for row in kinds
    ):
        warnings.append(
            "only one step ran: the optimizer's state comes with its end, so a second step may "
            "need more"
        )
    if fits and lowest_headroom_bytes is not None and lowest_headroom_bytes < 0:
        warnings.append(
            f"{format_bytes(-lowest_headroom_bytes)} would be missing if the libraries chose the "
            "largest workspaces assumed"
        )
    return tuple(dict.fromkeys(warnings))


def _survived_ooms(records: Sequence[Record], *, fits: bool) -> list[str]:
    done_without = [oom for record in records for oom in record.done_without]
    num_ooms = sum(
        max(
            len(record.ooms),
            sum(totals.num_ooms for totals in record.devices) - len(record.done_without),
        )
        for record in records
    )
    warnings = []
    if num_ooms and fits:
        where = _first_place([oom for record in records for oom in record.ooms])
        times = "once" if num_ooms == 1 else f"{num_ooms} times"
        warnings.append(f"the program ran out of memory {times}{where}, caught it and went on")
    if done_without and fits:
        size = format_bytes(max(oom.requested_bytes for oom in done_without))
        warnings.append(
            f"there was no room for workspaces of convolutions of up to {size}"
            f"{_first_place(done_without)}: cuDNN takes algorithms that need less, and more time"
        )
    return warnings


def _first_place(ooms: Sequence[OutOfMemory]) -> str:
    return next((f" (first at {oom.where})" for oom in ooms if oom.where), "")


def _rounded_pinned(host: HostMemory) -> list[str]:
    pinned, asked = host.pinned_low_bytes, host.pinned_asked_bytes
    if pinned - asked < max(_MIN_ROUNDING_BYTES, _ROUNDING_FRAC * pinned):
        return []
    text = (
        f"{format_bytes(pinned)} of host memory are pinned for {format_bytes(asked)} asked for: "
        "PyTorch rounds blocks up to powers of two, and gives none back"
    )
    return [text]


def _unsettled_steps(device: DeviceReport, which: str) -> list[str]:
    """That the peak may still grow: of steps of the same work the last two differ, for each work of
    the last round. Not where the last differs for a known reason, which is growth, an evaluation
    that has left its segments, or a smaller batch.
    """
    works: dict[frozenset[int | None], list[StepPeak]] = {}
    for step in device.steps:
        if step.is_complete:
            works.setdefault(step.roots, []).append(step)
    begin = max((alike[-2].index for alike in works.values() if len(alike) > 1), default=0)
    growth = round(device.growth or 0)
    texts = (_unsettled(w, growth, which) for w in works.values() if w[-1].index > begin)
    return next(filter(None, texts), [])


def _unsettled(alike: Sequence[StepPeak], growth: int, which: str) -> list[str]:
    """Likewise, of steps of the same work, of which each grows by this many bytes. A part that is
    called several times in each round has several peaks, which come again.
    """
    if len(alike) < 2:
        return []
    last, before = alike[-1].peak, alike[-2].peak
    for distance, (allocated, reserved) in enumerate((s.peak for s in alike[-2::-1]), 1):
        if _is_settled(allocated, last.allocated_bytes - distance * growth) and (
            growth or alike[-1].follows_evaluation or _is_settled(reserved, last.reserved_bytes)
        ):
            return []
    if alike[-1].inputs != alike[-2].inputs:
        return _larger_inputs(alike, which)
    changes = ", ".join(
        f"{name} {'+' if new >= old else ''}{format_bytes(new - old)}"
        for name, old, new in zip(("allocated", "reserved"), before, last, strict=True)
        if new != old
    )
    return [f"the peaks of the last two steps still differ{which} ({changes}); run more steps"]


def _is_settled(old: int, new: int) -> bool:
    return abs(new - old) <= _SETTLED_FRAC * old


def _larger_inputs(steps: Sequence[StepPeak], which: str) -> list[str]:
    """That the last step's inputs made it the highest; nothing where another step was higher."""
    last = steps[-1].peak.allocated_bytes
    earlier = max(step.peak.allocated_bytes for step in steps[:-1])
    if last <= earlier or _is_settled(earlier, last):
        return []
    more = format_bytes(last - earlier)
    text = (
        f"the inputs of the last step had other shapes and made its peak {more} higher than "
        f"before{which}; a larger batch still would take more"
    )
    return [text]
