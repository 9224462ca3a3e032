"""Rules about what is reserved and not used, and what libraries keep beside the allocator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ullage.explain.expandable import measure_expandable
from ullage.explain.rules.case import MIN_FREE_BYTES, Case
from ullage.explain.rules.rule import Found, Kind, Rule
from ullage.ground.units import MIB, format_bytes
from ullage.log.snapshot import Action

_EXPANDABLE_FRAC = 0.05
_SIDE_FRAC = 0.2
_UNUSED_FRAC = 0.25
_PRIVATE_FRAC = 0.1
_ROUNDING_FRAC = 0.06
_UNCUT = (
    "PYTORCH_ALLOC_CONF=expandable_segments:True (torch 2.9 and earlier: PYTORCH_CUDA_ALLOC_CONF): "
    "without it, up to 1 MiB of a segment that is left over is not cut off a block"
)
_PLANS = "cuFFT plans"  # players/phantom/csrc/answers/cufft.c


def _find_holes(case: Case) -> Iterator[Found]:
    """Expandable segments would have reserved less, as a replay of the trace shows."""
    device = case.device
    reserved = device.peak_reserved_bytes
    if not _is_worth(reserved - case.peak_bytes, reserved):
        return
    least = measure_expandable(case.report.snapshot, device.replay, device.index)
    if least is None or not _is_worth(reserved - least, reserved):
        return
    gain = reserved - least
    holes = device.fragmentation
    if _free_on_side_streams(case) > gain // 2:  # UL148 says more
        return
    evidence = [
        (
            f"reserved {format_bytes(reserved)}, never more than "
            f"{format_bytes(case.peak_bytes)} allocated"
        ),
        (
            f"the same requests by the allocator's rules: {format_bytes(reserved)} again under the "
            f"recorded settings, {format_bytes(least)} with expandable segments"
        ),
        *_last_request(case),
        (
            f"{format_bytes(holes.hole_bytes)} in holes beside live blocks, "
            f"{format_bytes(holes.empty_bytes)} in segments of other sizes than are asked for"
        ),
    ]
    pinned = [s for s in holes.pinned if 2 * s.live_bytes <= s.size_bytes][:2]
    for segment in pinned:
        sites = case.list_sites(np.array(segment.blocks[:8]))
        evidence.append(
            f"a segment of {format_bytes(segment.size_bytes)} is kept for "
            f"{format_bytes(segment.live_bytes)}: {sites[0]}"
        )
    yield Found(
        what=f"fragmentation: {format_bytes(gain)} of {format_bytes(reserved)} would not be "
        f"reserved with expandable segments ({100 * gain / reserved:.0f} %)",
        evidence=tuple(evidence),
        gain_bytes=gain,
    )


def _is_worth(num_bytes: int, reserved_bytes: int) -> bool:
    return num_bytes >= MIN_FREE_BYTES and num_bytes >= _EXPANDABLE_FRAC * reserved_bytes


def _last_request(case: Case) -> Iterator[str]:
    """The memory that was free when the last segment that made the most of them was asked for."""
    levels = case.device.levels
    event = int(np.argmax(levels.reserved_bytes)) - 1
    if event < 0:
        return
    events = case.report.snapshot.events_of(case.device.index)
    if events.action[event] not in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
        return
    free = int(levels.reserved_bytes[event] - levels.allocated_bytes[event])
    yield (
        f"when the last segment came ({format_bytes(int(events.size_bytes[event]))}), "
        f"{format_bytes(free)} were free in pieces"
    )


def _find_streams(case: Case) -> Iterator[Found]:
    device = case.device
    free = _free_by_stream(case)
    side = _free_on_side_streams(case)
    lost = min(side, device.peak_reserved_bytes - case.peak_bytes)
    if case.report.contradictions or lost < MIN_FREE_BYTES:
        return
    if lost < _SIDE_FRAC * device.peak_reserved_bytes:
        return
    yield Found(
        what=f"{len(free)} streams have caches of their own: {format_bytes(lost)} reserved and of "
        "no use to the others",
        evidence=(
            (
                f"reserved {format_bytes(device.peak_reserved_bytes)}, never more than "
                f"{format_bytes(case.peak_bytes)} allocated"
            ),
            f"free in segments of each stream: up to {format_bytes(max(free.values()))}",
        ),
        gain_bytes=lost,
    )


def _free_on_side_streams(case: Case) -> int:
    free = _free_by_stream(case)
    return sum(free.values()) - max(free.values(), default=0)


def _free_by_stream(case: Case) -> dict[int, int]:
    """When the most is reserved: by stream, the free bytes of its segments."""
    snapshot, device = case.report.snapshot, case.device
    event = device.fragmentation.event
    lives, blocks = device.replay.segments, device.replay.blocks
    table, events = snapshot.segments, snapshot.events_of(device.index)
    here = table.device == device.index
    at_end = dict(zip(table.address[here].tolist(), table.stream[here].tolist(), strict=True))
    bytes_by_stream: dict[int, int] = {}
    there = np.flatnonzero((lives.birth <= event) & (event < lives.death))
    for number in there.tolist():
        birth, address = int(lives.birth[number]), int(lives.address[number])
        stream = int(events.stream[birth]) if birth >= 0 else at_end.get(address, 0)
        bytes_by_stream[stream] = bytes_by_stream.get(stream, 0) + int(lives.size_bytes[number])
    live = blocks.is_live(event)
    streams, place = np.unique(blocks.stream[live], return_inverse=True)
    used = np.zeros(len(streams), dtype=np.int64)
    np.add.at(used, place, blocks.size_bytes[live])
    for stream, size in zip(streams.tolist(), used.tolist(), strict=True):
        bytes_by_stream[stream] = bytes_by_stream.get(stream, 0) - size
    return {stream: size for stream, size in bytes_by_stream.items() if size > 0}


def _find_unused_cache(case: Case) -> Iterator[Found]:
    """The reserved bytes that the later half of the steps never needs."""
    course, levels = case.device.course, case.device.levels
    if course.num_steps < 4 or case.report.contradictions:
        return
    begin, end = int(course.step_ends[course.num_steps // 2 - 1]), int(course.step_ends[-1])
    needed = int(levels.allocated_bytes[begin + 1 : end + 1].max(initial=0))
    reserved = int(levels.reserved_bytes[begin + 1 : end + 1].min(initial=2**62))
    lost = reserved - needed
    if lost < MIN_FREE_BYTES or lost < _UNUSED_FRAC * reserved:
        return
    if case.device.peak_event < course.step_ends[0]:  # UL144 says more
        return
    if case.peak_bytes < needed + lost // 2:
        return
    yield Found(
        what=f"the cache holds {format_bytes(lost)} that the later steps never use",
        evidence=(
            (
                f"reserved {format_bytes(reserved)}, since step {course.num_steps // 2} never more "
                f"than {format_bytes(needed)} allocated"
            ),
            (
                f"the peak of {format_bytes(case.peak_bytes)} was "
                f"{course.describe(case.device.peak_event) or 'before'}"
            ),
        ),
        gain_bytes=lost,
    )


def _find_private(case: Case) -> Iterator[Found]:
    holes = case.device.fragmentation
    lost = holes.private_free_bytes
    if lost < MIN_FREE_BYTES or lost < _PRIVATE_FRAC * max(holes.reserved_bytes, 1):
        return
    yield Found(
        what=f"private pools hold {format_bytes(holes.private_bytes)}, of which "
        f"{format_bytes(lost)} are free and of use to nothing else",
        evidence=(f"{len(case.report.snapshot.pools) - 1} private pools in the file",),
        gain_bytes=lost,
    )


def _find_plans(case: Case) -> Iterator[Found]:
    totals = case.device.totals
    for size in () if totals is None else totals.outside:
        if size.what == _PLANS and size.likely_bytes >= MIN_FREE_BYTES:
            low, high = map(format_bytes, (size.likely_bytes - size.less_bytes, size.likely_bytes))
            yield Found(
                what=f"{_PLANS} hold up to {high} beside PyTorch's allocator",
                evidence=(
                    f"{size.count:,} plans were made; those kept at once hold {low} to {high}",
                ),
                gain_bytes=size.likely_bytes,
            )


def _find_rounding(case: Case) -> Iterator[Found]:
    live, blocks = case.is_live, case.device.replay.blocks
    lost = case.sum(live) - int(blocks.requested_bytes[live].sum())
    if lost < 64 * MIB or not case.is_worth(lost, _ROUNDING_FRAC):
        return
    yield Found(
        what=f"rounding of sizes costs {case.share(lost)}",
        evidence=((f"{int(live.sum())} live blocks, {format_bytes(case.sum(live))} for "
                  f"{format_bytes(case.sum(live) - lost)} that were asked for"),),
        gain_bytes=lost,
        change="" if _has_roundup(case) else _UNCUT,
    )  # fmt: skip


def _has_roundup(case: Case) -> bool:
    """True if the file says that sizes are rounded up to parts of powers of two; True where it says
    nothing.
    """
    settings = case.report.snapshot.settings
    divisions = settings.get("roundup_power2_divisions")
    are_set = isinstance(divisions, Mapping) and any(divisions.values())
    return not settings or are_set


RULES = (
    Rule(
        code="UL141",
        title="fragmentation",
        kind=Kind.CHOICE,
        meaning="Free memory lies in pieces: between live blocks, or in segments that are smaller "
        "than what is asked for now, as when lengths grow or alternate.",
        evidence="The requests of the trace, made again by the rules of PyTorch's allocator, come "
        "to what was recorded under the recorded settings, and to less with expandable segments: "
        "by 5 %, and 192 MiB, or more. That is the gain. A file without a trace, a trace that "
        "begins late, and one with private pools cannot be replayed.",
        cost="nothing; without the CUDA driver's virtual memory (old WSL, MIG of some drivers) "
        "expandable segments do not work, and tensors in them cannot be shared by CUDA IPC",
        change="PYTORCH_ALLOC_CONF=expandable_segments:True (torch 2.9 and earlier: "
        "PYTORCH_CUDA_ALLOC_CONF)",
        find=_find_holes,
    ),
    Rule(
        code="UL142",
        title="the cache holds what later steps never use",
        kind=Kind.FAULT,
        meaning="What was needed once stays reserved: other processes and libraries cannot have "
        "it, though this one has no use for it.",
        evidence="Over the later half of the steps 25 % of what is reserved was never allocated, "
        "192 MiB or more, and an earlier phase needed it.",
        cost="nothing, if it is called once",
        change="call torch.cuda.empty_cache() once after the phase that needed it",
        find=_find_unused_cache,
    ),
    Rule(
        code="UL143",
        title="private pools hold free memory",
        kind=Kind.CHOICE,
        meaning="A CUDA graph or a torch.cuda.MemPool has its own segments, which nothing else can "
        "use even where they are free.",
        evidence="What is free in segments of private pools is 10 % of what is reserved or more.",
        cost="graphs that share a pool must not run at the same time",
        change="share one pool among graphs (torch.cuda.graph(g, pool=first.pool())), capture "
        "fewer batch sizes, largest first",
        find=_find_private,
    ),
    Rule(
        code="UL145",
        title="rounding of sizes is expensive",
        kind=Kind.CHOICE,
        meaning="Sizes are rounded up: to 512 bytes, to parts of powers of two where "
        "roundup_power2_divisions says so, and a large block is not split when the rest is small.",
        evidence="Live blocks at the peak have 6 % more bytes than were asked for, or more.",
        cost="with fewer divisions fragmentation may grow",
        change="leave roundup_power2_divisions out, or give it more divisions",
        find=_find_rounding,
    ),
    Rule(
        code="UL148",
        title="every stream keeps a cache of its own",
        kind=Kind.CHOICE,
        meaning="Memory that was allocated on one stream is used again on that stream alone, so "
        "that with N streams up to N times as much is reserved as is ever in use.",
        evidence="Segments of all streams but one have 20 % of what is reserved free, 192 MiB or "
        "more, and it was never allocated at once.",
        cost="fewer streams may overlap less",
        change="use fewer side streams, or allocate outside of `with torch.cuda.stream(...)` and "
        "call record_stream()",
        find=_find_streams,
    ),
    Rule(
        code="UL149",
        title="many plans of cuFFT are kept",
        kind=Kind.CHOICE,
        meaning="PyTorch keeps a plan of cuFFT for each shape of a transform, 4,096 on a device; "
        "a plan holds memory of the device that no counter of PyTorch's has.",
        evidence="The plans that are kept at once may hold 192 MiB or more, as some 300 of them "
        "do. Runs on the simulated GPU only.",
        cost="a plan that is not kept is made again, which takes milliseconds",
        change="torch.backends.cuda.cufft_plan_cache.max_size = 64, or another number of shapes "
        "that come again; pad signals to a few lengths",
        find=_find_plans,
    ),
)
