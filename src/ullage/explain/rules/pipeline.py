"""Rules about copies between host and device: they cost time, not device memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ullage.explain.rules.case import Case
from ullage.explain.rules.rule import Found, Kind, Rule
from ullage.explain.transfers import Transfers
from ullage.units import MIB, format_bytes

# Scalars, lengths and the tokens of a batch are smaller: nobody waits long for them.
_MIN_STEP_BYTES = MIB
_MIN_PINNED_BYTES = 64 * MIB
_MIN_STEPS = 6
_RISING_FRAC = 0.3


def _find_pageable(case: Case) -> Iterator[Found]:
    for transfer in _to_device(case):
        if not transfer.is_pinned:
            note = (
                "" if transfer.is_waited_for else "; non_blocking=True does nothing for such memory"
            )
            yield _found(case, transfer, f"from memory that is not pinned{note}")


def _find_waits(case: Case) -> Iterator[Found]:
    for transfer in _to_device(case):
        if transfer.is_pinned and transfer.is_waited_for:
            yield _found(case, transfer, "and waits for it, though the memory is pinned")


def _to_device(case: Case) -> Iterator[Transfers]:
    recorded = case.device.recorded
    for transfer in (recorded.transfers or ()) if recorded is not None else ():
        if transfer.is_to_device and transfer.step_bytes >= _MIN_STEP_BYTES:
            yield transfer


def _found(case: Case, transfers: Transfers, how: str) -> Found:
    blocks = np.array(transfers.blocks, dtype=np.int64)
    each = transfers.num_copies / transfers.num_steps
    stream = "another stream than" if transfers.is_beside else "the stream of"
    return Found(
        what=f"each step copies {format_bytes(transfers.step_bytes)} to the device {how}",
        evidence=(
            (
                f"in {transfers.num_steps} of the {case.device.course.num_steps - 1} steps after "
                f"the "
                f"first, {each:.0f} a step, on {stream} the computation"
            ),
            *case.list_sites(blocks),
        ),
        gain_bytes=0,
    )


def _find_pinned_growth(case: Case) -> Iterator[Found]:
    recorded = case.device.recorded
    if recorded is None or recorded.pinned is None:
        return
    sizes = recorded.pinned.size_bytes
    if len(sizes) < _MIN_STEPS:
        return
    later = sizes[len(sizes) // 2 :]
    grown = int(later[-1] - later[0])
    rising = int((np.diff(later) > 0).sum())
    if grown < _MIN_PINNED_BYTES or rising < _RISING_FRAC * (len(later) - 1):
        return
    yield Found(
        what=f"pinned memory of the host grows: {format_bytes(int(sizes[-1]))} at the end",
        evidence=(
            (
                f"{format_bytes(int(sizes[0]))} after the first step, "
                f"{format_bytes(int(later[0]))} after half of them; it grew in {rising} of the "
                f"last {len(later) - 1} steps"
            ),
        ),
        gain_bytes=0,
    )


RULES = (
    Rule(
        code="UL161",
        title="each step copies from memory that is not pinned",
        kind=Kind.TIME,
        meaning="The driver copies pageable memory by way of a pinned buffer of its own, and the "
        "call returns only when the source has been read: host and GPU wait for each other, and "
        "nothing goes on beside the copy.",
        evidence="In half of the steps or more, copies to the device from pageable memory come to "
        "1 MiB a step or more. Runs that ullage recorded only.",
        cost="pinned memory cannot be swapped out, so pin what is copied and no more",
        change="DataLoader(..., pin_memory=True) and batch.to(device, non_blocking=True); for a "
        "tensor of one's own, tensor.pin_memory() once",
        find=_find_pageable,
    ),
    Rule(
        code="UL162",
        title="each step waits for its copy to the device",
        kind=Kind.TIME,
        meaning="The memory is pinned, so the copy could go on beside the computation, but the "
        "program waits for it before it does anything else.",
        evidence="In half of the steps or more, copies of pinned memory to the device are followed "
        "at once by a wait for their stream, and come to 1 MiB a step or more. Runs that ullage "
        "recorded only.",
        cost="the batch must not be overwritten on the host before the copy has ended",
        change="batch.to(device, non_blocking=True); to overlap it with the step before, copy the "
        "next batch on a stream of its own and call wait_stream() before it is used",
        find=_find_waits,
    ),
    Rule(
        code="UL163",
        title="pinned memory grows from step to step",
        kind=Kind.TIME,
        meaning="PyTorch keeps pinned memory for later and gives none back, in sizes of powers of "
        "two: batches of other lengths each time, or pinned tensors that are kept, take more and "
        "more of what the host has and cannot swap out.",
        evidence="Over the later half of six steps or more pinned memory grew by 64 MiB or more, "
        "in three of ten steps or more. Runs that ullage recorded only.",
        cost="nothing, or padding to equal lengths",
        change="pin buffers once and fill them again; pad batches to a few lengths; drop pinned "
        "tensors that are done with (torch.accelerator.empty_host_cache() in torch 2.9 and later)",
        find=_find_pinned_growth,
    ),
)
