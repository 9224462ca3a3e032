"""Rules about the input pipeline: copies between host and device, and waits for batches. They cost
time, not device memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import numpy as np

from ullage.explain.rules.case import Case
from ullage.explain.rules.rule import Found, Kind, Rule
from ullage.explain.transfers import Transfers
from ullage.facts.gpus.catalog import find_gpu
from ullage.ground.errors import SpecError
from ullage.ground.units import MIB, format_bytes

# Scalars, lengths and the tokens of a batch are smaller: nobody waits long for them.
_MIN_STEP_BYTES = MIB
# At the 64 GB/s of PCIe 5.0 x16 a quarter of a millisecond.
_MIN_IN_LINE_BYTES = 16 * MIB
_MIN_IN_LINE_FRAC = 0.01
_MIN_PINNED_BYTES = 64 * MIB
_MIN_STEPS = 6
_RISING_FRAC = 0.3
_MIN_STARVED_FRAC = 0.2
_MIN_STARVED_S = 1e-3
_MIN_WAITED_STEPS = 3
_STRETCHES = 10


def _find_pageable(case: Case) -> Iterator[Found]:
    for transfer in _to_device(case, _MIN_STEP_BYTES):
        if not transfer.is_pinned:
            note = (
                "" if transfer.is_waited_for else "; non_blocking=True does nothing for such memory"
            )
            yield _found(case, transfer, f"from memory that is not pinned{note}")


def _find_waits(case: Case) -> Iterator[Found]:
    for transfer in _to_device(case, _MIN_STEP_BYTES):
        if transfer.is_pinned and transfer.is_waited_for:
            yield _found(case, transfer, "and waits for it, though the memory is pinned")


def _find_in_line(case: Case) -> Iterator[Found]:
    for transfer in _to_device(case, _MIN_IN_LINE_BYTES):
        if not transfer.is_pinned or transfer.is_waited_for or transfer.is_beside:
            continue
        share = _share_of_step(case, transfer)
        if share is None or share[0] >= _MIN_IN_LINE_FRAC:
            yield _found(
                case, transfer, "on the stream that computes: nothing goes on beside the copy",
                () if share is None else (share[1],),
            )  # fmt: skip


def _share_of_step(case: Case, transfer: Transfers) -> tuple[float, str] | None:
    """The part of a measured step that the link needs for a step's bytes at least, and that in
    words; None where the steps were not measured, or the link is not known.
    """
    record, totals = case.report.record, case.device.totals
    if record is None or record.measured is None or totals is None:
        return None
    rows = record.measured.step_peaks[1:]
    try:
        gpu = find_gpu(totals.name)
    except SpecError:
        return None
    if not rows or gpu.host_bytes_per_s is None:
        return None
    copy_s = transfer.step_bytes / gpu.host_bytes_per_s
    step_s = median(row.seconds / max(row.num_steps, 1) for row in rows)
    share = copy_s / step_s if step_s else 1.0
    return share, (
        f"{gpu.host_link} needs {_milliseconds(copy_s)} for them at least, "
        f"{100 * share:.0f} % of a step of {_milliseconds(step_s)}"
    )


def _to_device(case: Case, least_bytes: int) -> Iterator[Transfers]:
    recorded = case.device.recorded
    for transfer in (recorded.transfers or ()) if recorded is not None else ():
        if transfer.is_to_device and transfer.step_bytes >= least_bytes:
            yield transfer


def _found(case: Case, transfers: Transfers, how: str, evidence: tuple[str, ...] = ()) -> Found:
    blocks = np.array(transfers.blocks, dtype=np.int64)
    each = transfers.num_copies / transfers.num_steps
    stream = "another stream than" if transfers.is_beside else "the stream of"
    record = case.report.record
    is_cut = record is not None and record.num_lost_copies > 0
    which = "whose copies were kept" if is_cut else "after the first"
    return Found(
        what=f"each step copies {format_bytes(transfers.step_bytes)} to the device {how}",
        evidence=(
            (
                f"in {transfers.num_steps} of the {transfers.num_known_steps} steps {which}, "
                f"{each:.0f} a step, on {stream} the computation"
            ),
            *evidence,
            *case.list_sites(blocks),
        ),
        gain_bytes=0,
    )


def _find_starving(case: Case) -> Iterator[Found]:
    waits = None if case.report.record is None else case.report.record.batch_waits
    if waits is None or case.device is not case.report.devices[0]:  # they are the process's
        return
    num_steps = int(waits.num_steps[1:].sum())
    seconds, high_s = waits.seconds[1:], waits.idle_high_s[1:]  # the first step starts workers
    if num_steps < _MIN_WAITED_STEPS or high_s.sum() < _MIN_STARVED_S * num_steps:
        return
    stretches = np.array_split(np.arange(len(seconds)), min(_STRETCHES, len(seconds)))
    shares = [high_s[rows].sum() / max(seconds[rows].sum(), 1e-9) for rows in stretches]
    total = high_s.sum() / max(seconds.sum(), 1e-9)
    if min(median(shares), total) < _MIN_STARVED_FRAC:
        return
    low = waits.idle_low_s[1:].sum() / max(seconds.sum(), 1e-9)
    loader, change = _loader_words(waits.num_workers)
    percents = " to ".join(dict.fromkeys(f"{100 * share:.0f}" for share in (low, total)))
    yield Found(
        what=f"the GPU has nothing to do for {percents} % of the time, as the program "
        f"waits for its next batch",
        evidence=(
            (
                f"of the {_milliseconds(seconds.sum() / num_steps)} of a step "
                f"{_milliseconds(waits.waited_s[1:].sum() / num_steps)} are waits for the loader, "
                f"in {num_steps} steps after the first"
            ),
            loader,
        ),
        gain_bytes=0,
        change=change,
    )


def _loader_words(num_workers: int | None) -> tuple[str, str]:
    """The words for what loads the batches, and the change."""
    if num_workers:
        several = "s" if num_workers > 1 else ""
        return (
            f"the DataLoader has {num_workers} worker process{'e' * bool(several)}{several}",
            (
                "DataLoader(num_workers=...) with more workers, while the host has cores for them, "
                "or a larger prefetch_factor where batches take unequal times; then for batch in "
                "ullage.prefetch(loader), which pins and copies beside the computation"
            ),
        )
    return (
        "the batches are loaded in the program's own process",
        (
            "DataLoader(num_workers=...), or for batch in ullage.prefetch(loader, ahead=2), whose "
            "thread loads the next batches during the step"
        ),
    )


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


def _find_pinned_growth(case: Case) -> Iterator[Found]:
    recorded = case.device.recorded
    if recorded is None or recorded.pinned is None:
        return
    sizes = recorded.pinned.low_bytes
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
        change="for batch in ullage.prefetch(loader); by hand pin_memory=True, or "
        "tensor.pin_memory() once, and batch.to(device, non_blocking=True)",
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
        change="for batch in ullage.prefetch(loader), whose copies go on beside the computation; "
        "by hand batch.to(device, non_blocking=True)",
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
        "in three of ten steps or more, also if every copy is done at once. Runs that ullage "
        "recorded only.",
        cost="nothing, or padding to equal lengths",
        change="pin buffers once and fill them again; pad batches to a few lengths; drop pinned "
        "tensors that are done with (torch.accelerator.empty_host_cache() in torch 2.9 and later)",
        find=_find_pinned_growth,
    ),
    Rule(
        code="UL164",
        title="each step's copy to the device is in line with the computation",
        kind=Kind.TIME,
        meaning="The memory is pinned and the program does not wait, but the copy is on the stream "
        "that computes: there it begins when all work before it has ended, and what follows it "
        "begins when it has ended.",
        evidence="In half of the steps or more, copies of pinned memory to the device on the "
        "stream with most of the allocated bytes come to 16 MiB a step or more, and are not waited "
        "for. Where a real GPU was recorded whose link is PCIe, its rate must also give 1 % of a "
        "step or more. Runs that ullage recorded only.",
        cost="one more batch on the device while it is copied",
        change="for batch in ullage.prefetch(loader), whose copies are on a stream of their own; "
        "by hand copy in torch.cuda.stream(side), let the current stream wait for it "
        "(wait_stream), and call batch.record_stream(current)",
        find=_find_in_line,
    ),
    Rule(
        code="UL165",
        title="the GPU waits for batches",
        kind=Kind.TIME,
        meaning="When the program had waited for its next batch, the stream that computes had "
        "nothing left to do: the data workers, or the loading in the program itself, are slower "
        "than the GPU. Where the stream was idle before the wait began, all of the wait is lost; "
        "else a part of it, which is why this is an interval.",
        evidence="The waits of the thread that ends the steps for the next batch of a DataLoader "
        "or of ullage.prefetch, at whose end the current stream was idle, are 20 % or more of the "
        "time after the first step, in the middle one of ten stretches of steps too, and 1 ms a "
        "step or more, in three steps or more. Records of a real GPU only: on the phantom the "
        "GPU's work takes no time.",
        cost="memory and cores of the host for each worker",
        change="DataLoader(num_workers=...) with more workers, and ullage.prefetch(loader)",
        find=_find_starving,
    ),
)
