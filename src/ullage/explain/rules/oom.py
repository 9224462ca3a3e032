"""Rules about running out of memory; one of them speaks for each failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ullage.explain.oom import Cause, Shortage
from ullage.explain.rules.case import Case
from ullage.explain.rules.graphs import growth_relief
from ullage.explain.rules.rule import Found, Kind, Rule
from ullage.ground.units import format_bytes

FAMILY = "UL15"
_SURVIVED = "; the program caught it and went on"


def _finder(cause: Cause) -> Callable[[Case], Iterator[Found]]:
    leaks = cause is Cause.LEAKED

    def find(case: Case) -> Iterator[Found]:
        shortage = case.device.shortage
        if shortage is not None and shortage.cause is cause:
            blocks = [block for site in case.device.growth for block in site.blocks]
            yield Found(
                what=_SENTENCES[cause](shortage) + _SURVIVED * shortage.was_survived,
                evidence=describe_shortage(shortage),
                gain_bytes=max(shortage.missing_bytes, 0),
                blocks=np.array(blocks, dtype=np.int64) if leaks else None,
                relief=growth_relief(case, case.device.growth) if leaks else None,
            )

    return find


def describe_shortage(shortage: Shortage) -> tuple[str, ...]:
    """The arithmetic of a failed request."""
    asked = (
        f"asked for {format_bytes(shortage.requested_bytes)}, the device had "
        f"{format_bytes(shortage.device_free_bytes)} free"
    )
    too_few = f": {format_bytes(shortage.missing_bytes)} too few"
    lines = [
        asked + (", which the process may not have" if shortage.is_limited else too_few),
        (
            f"reserved {format_bytes(shortage.reserved_bytes)}: "
            f"{format_bytes(shortage.allocated_bytes)} allocated, "
            f"{format_bytes(shortage.free_reserved_bytes)} free, the largest piece of it "
            f"{format_bytes(shortage.largest_free_bytes)}"
        ),
    ]
    if shortage.others_bytes is not None and shortage.total_bytes is not None:
        lines.append(
            f"of the device's {format_bytes(shortage.total_bytes)}, "
            f"{format_bytes(shortage.others_bytes)} are other processes' and libraries'"
        )
    if shortage.leaked_bytes:
        lines.append(
            f"{format_bytes(shortage.leaked_bytes)} are held by lines that grow every step"
        )
    return tuple(lines)


def _pieces(shortage: Shortage) -> tuple[int, int]:
    """The free pieces of the allocator's memory, and of what it may still have."""
    return shortage.free_reserved_bytes, 0 if shortage.is_limited else shortage.device_free_bytes


_SENTENCES: dict[Cause, Callable[[Shortage], str]] = {
    Cause.OTHERS: lambda shortage: (
        f"out of memory: {format_bytes(shortage.others_bytes or 0)} of the device belong to "
        f"another process or library; {format_bytes(shortage.missing_bytes)} were missing"
    ),
    Cause.LEAKED: lambda shortage: (
        f"out of memory, leaked: {format_bytes(shortage.leaked_bytes)} are held by what grows from "
        f"step to step; {format_bytes(shortage.missing_bytes)} were missing"
    ),
    Cause.FRAGMENTED: lambda shortage: (
        f"out of memory, fragmented: {format_bytes(shortage.requested_bytes)} were asked for and "
        f"{format_bytes(sum(_pieces(shortage)))} free, but in pieces of at most "
        f"{format_bytes(max(shortage.largest_free_bytes, _pieces(shortage)[1]))}"
    ),
    Cause.LIMITED: lambda shortage: (
        f"out of memory, a limit of the process: {format_bytes(shortage.reserved_bytes)} are "
        f"reserved, and {format_bytes(shortage.device_free_bytes)} of the device are free"
    ),
    Cause.SPIKE: lambda shortage: (
        f"out of memory, a single spike: one request of "
        f"{format_bytes(shortage.requested_bytes)} beside "
        f"{format_bytes(shortage.allocated_bytes)} in use"
    ),
    Cause.TOO_BIG: lambda shortage: (
        f"out of memory, too big: {format_bytes(shortage.allocated_bytes)} are in use and "
        f"{format_bytes(shortage.missing_bytes)} more than there is were asked for"
    ),
}


def _rule(code: str, cause: Cause, title: str, meaning: str, change: str) -> Rule:
    return Rule(
        code=code,
        title=title,
        kind=Kind.FAULT,
        meaning=meaning,
        evidence="The last request of the trace that failed, what was reserved and allocated then, "
        "and what the device had free.",
        cost="depends on the change",
        change=change,
        find=_finder(cause),
    )


RULES = (
    _rule("UL151", Cause.TOO_BIG, "out of memory: too big",
          "Nothing leaks and little is fragmented: the program needs more than there is.",
          "see the findings below; else a smaller batch, checkpointing, sharding, a larger GPU"),
    _rule("UL152", Cause.FRAGMENTED, "out of memory: fragmented",
          "As much as was asked for is free, but in pieces.",
          "PYTORCH_ALLOC_CONF=expandable_segments:True (torch 2.9 and earlier: "
          "PYTORCH_CUDA_ALLOC_CONF)"),
    _rule("UL153", Cause.LEAKED, "out of memory: leaked",
          "Without what grows from step to step the request would have been served.",
          "free what grows: the findings below name the lines"),
    _rule("UL154", Cause.OTHERS, "out of memory: the memory is another's",
          "Of the device this much belongs neither to this allocator nor to the driver's context "
          "that the request would have been served without it.",
          "end the other process, or give this one a GPU of its own (CUDA_VISIBLE_DEVICES); NCCL "
          "and other libraries count here, too"),
    _rule("UL156", Cause.LIMITED, "out of memory: a limit of the process",
          "The device had the memory, and this process may not have all of it.",
          "raise or drop the limit: torch.cuda.set_per_process_memory_fraction, or "
          "per_process_memory_fraction in PYTORCH_ALLOC_CONF; `ullage exec --cap` "
          "sets it, too"),
    _rule("UL155", Cause.SPIKE, "out of memory: a single spike",
          "One request is as large as all that is in use, or larger.",
          "do what the line does in chunks; of a decomposition ask for no whole matrices "
          "(full_matrices=False of torch.linalg.svd, mode='reduced' of qr)"),
)  # fmt: skip
