"""Parts of the report of a snapshot: the kind of file, lines of code, reserved memory,
fragmentation, and steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from ullage.answers import block_kinds as b
from ullage.explain.moments.course import Phase, StepSource
from ullage.explain.owners.sites import UNKNOWN_SITE
from ullage.explain.reconcile import reconcile
from ullage.explain.rules.case import Case, category_of
from ullage.explain.snapshot import DeviceSnapshot, SiteShare, SnapshotReport
from ullage.ground.units import format_bytes
from ullage.log.growth import MIN_STEPS
from ullage.verbs.views.palette import (
    CACHE_LOOK,
    CATEGORY_LOOKS,
    CONTEXT_LOOK,
    FREE_LOOK,
    NON_TORCH_LOOK,
    USED_LOOK,
    Look,
)

_MAX_SITES = 10
_MAX_PINNED = 4
_MAX_GROWING = 6
_MAX_UNKNOWN = 3
_ROUNDING_LOOK = Look("rounding", "#7aa6c2")
_HOLES_LOOK = Look("holes in segments", "#b5651d")
_PRIVATE_LOOK = Look("free in private pools", "#8c6bb1")


def describe_file(report: SnapshotReport) -> Iterator[str]:
    """The kind of the file, and its parts that ullage does not know."""
    record = report.record
    if record is not None:
        yield f"written by ullage {record.ullage}, torch {record.torch}: {' '.join(record.argv)}"
    for device in report.devices:
        which = f"device {device.index}: " if len(report.devices) > 1 else ""
        yield which + describe_device(report, device)
    unknown = sorted(report.snapshot.unknown.items(), key=lambda item: -item[1])
    if unknown:
        names = ", ".join(f"{name} ({count:,})" for name, count in unknown[:_MAX_UNKNOWN])
        more = len(unknown) - _MAX_UNKNOWN
        yield f"not known here and left out: {names}{f' and {more} more' if more > 0 else ''}"


def describe_device(report: SnapshotReport, device: DeviceSnapshot) -> str:
    """The extent of the trace, such as "a whole trace of 19,430 events over 2.1 s"."""
    count = device.replay.num_events
    blocks = device.replay.blocks
    before = int((blocks.birth < 0).sum())
    if count <= 1:
        return f"the state alone, without a history: {before:,} blocks"
    times = report.snapshot.events_of(device.index).time_us
    seconds = (int(times[-1]) - int(times[0])) / 1e6 if times.any() else None
    over = f" over {seconds:.1f} s" if seconds is not None else ""
    if not before and not (device.replay.segments.birth < 0).any():
        return f"a whole trace of {count:,} events{over}"
    size = format_bytes(int(device.levels.allocated_bytes[0]))
    return (
        f"a trace of {count:,} events{over} that begins later: {before:,} blocks with {size} "
        "were there before it"
    )


def moment_text(case: Case, event: int) -> str:
    """The moment of an event: ", at event 2,780 of 19,430, 0.31 s in, step 1, backward"."""
    device = case.device
    if device.replay.num_events <= 1:
        return ""
    if event < 0:
        return ", before the trace begins"
    parts = [f", at event {event:,} of {device.replay.num_events:,}"]
    times = case.report.snapshot.events_of(device.index).time_us
    if times.any():
        parts.append(f"{(int(times[event]) - int(times[0])) / 1e6:.2f} s in")
    described = device.course.describe(event)
    if described and device.course.source is not StepSource.STACKS:
        parts.append(described)
    return ", ".join(parts)


def largest_sites(case: Case, num_sites: int) -> b.Table:
    """The few lines of code that hold most at the peak."""
    rows = [_site_row(case, share) for share in case.device.sites_at_peak[:num_sites]]
    return b.Table((b.RIGHT, b.RIGHT, b.LEFT, b.REST), rows)


def site_table(case: Case) -> b.Table:
    """The lines of code with the most live memory at the peak."""
    shares = case.device.sites_at_peak
    rows: b.Rows = [_site_row(case, share) for share in shares[:_MAX_SITES]]
    rest = sum(share.size_bytes for share in shares[_MAX_SITES:])
    if rest:
        count = sum(share.num_blocks for share in shares[_MAX_SITES:])
        rows.append(
            [format_bytes(rest, 2), f"{count:,}", "", f"{len(shares) - _MAX_SITES} more places"]
        )
    return b.Table((b.RIGHT, b.RIGHT, b.LEFT, b.REST), rows, ("bytes", "blocks", "owner", "where"))


def _site_row(case: Case, share: SiteShare) -> tuple[str, str, str, str]:
    return (
        format_bytes(share.size_bytes, 2),
        f"{share.num_blocks:,}",
        CATEGORY_LOOKS[share.category].label,
        _site_text(case, share),
    )


def _site_text(case: Case, share: SiteShare) -> str:
    if share.site != UNKNOWN_SITE:
        return share.site
    blocks = case.device.replay.blocks
    mine = case.is_live & (case.report.sites.of_stack[blocks.stack] == 0)
    if (blocks.birth[mine] < 0).all():
        return "from before the trace, without a stack"
    return "no Python stack (backward, libraries)" if case.is_known else share.site


def ledger_table(case: Case) -> b.Table:
    """The sum from requested to reserved memory, and to the device's memory as in nvidia-smi."""
    lines = reconcile(case.device.fragmentation, case.device.totals)
    parts = [
        (Look("tensors, as asked for", USED_LOOK.color), lines.requested_bytes),
        (_ROUNDING_LOOK, lines.rounding_bytes),
        (Look("cache, can be given back", CACHE_LOOK.color), lines.cache_bytes),
        (_HOLES_LOOK, lines.hole_bytes),
        (_PRIVATE_LOOK, lines.private_free_bytes),
    ]
    scale = max(size for _, size in parts)
    rows: b.Rows = [
        [look.label, format_bytes(size, 2), b.Bar(size, scale, look.color)]
        for look, size in parts
        if size
    ]
    rows.append(["reserved", format_bytes(lines.reserved_bytes, 2)])
    # The device's lines beside reserved memory, without zeros; None: not in the file.
    beside = [
        (CONTEXT_LOOK.label, lines.context_bytes), (NON_TORCH_LOOK.label, lines.library_bytes)
    ]  # fmt: skip
    if lines.process_bytes is not None:
        beside.append(("this process in nvidia-smi", lines.process_bytes))
    beside.append(("other processes", lines.other_process_bytes))
    if case.device.totals is not None and lines.total_bytes is not None:
        beside += [
            (FREE_LOOK.label, lines.free_bytes), (case.device.totals.name, lines.total_bytes)
        ]  # fmt: skip
    rows += (
        [label, "not known" if number is None else format_bytes(number, 2)]
        for label, number in beside
        if number != 0
    )
    return b.Table((b.LEFT, b.RIGHT, b.LEFT), rows)


def fragmentation_parts(case: Case, request_bytes: int | None) -> Iterator[b.Block]:
    """The blocks that keep segments from being released, and the space for a request."""
    lay = case.device.fragmentation
    if request_bytes is not None:
        yield b.Title(f"A request of {format_bytes(request_bytes)} there")
        room = lay.room_for(request_bytes)
        text = f"finds room for {room:,} of its size in what is reserved and free"
        if not room:
            free = lay.reserved_bytes - lay.allocated_bytes
            text = f"needs new memory: {format_bytes(free)} are free, the largest piece of it is "
            text += format_bytes(lay.largest_free_bytes)
        yield b.Note(text, indent=2)
    costly = [segment for segment in lay.pinned if 2 * segment.live_bytes <= segment.size_bytes]
    if not costly or sum(segment.free_bytes for segment in costly) * 20 < lay.reserved_bytes:
        return
    yield b.Title("Segments kept by a few blocks")
    rows: b.Rows = []
    for segment in costly[:_MAX_PINNED]:
        where = case.site(segment.blocks[0])
        more = f" and {len(segment.blocks) - 1} more" if len(segment.blocks) > 1 else ""
        rows.append(
            [format_bytes(segment.size_bytes), format_bytes(segment.live_bytes), where + more]
        )
    rest = costly[_MAX_PINNED:]
    if rest:
        rows.append(
            [
                format_bytes(sum(segment.size_bytes for segment in rest)),
                format_bytes(sum(segment.live_bytes for segment in rest)),
                f"{len(rest)} more segments",
            ]
        )
    yield b.Table((b.RIGHT, b.RIGHT, b.REST), rows, ("segment", "live", "kept by"))


def step_parts(case: Case) -> Iterator[b.Block]:
    """The memory that grows from step to step."""
    device, course = case.device, case.device.course
    if course.source is StepSource.NONE or course.num_steps < 2:
        return
    steps = course.num_steps
    # Without an optimizer each forward pass is a step; in a generating model, each token.
    is_passes = course.has_phases and Phase.OPTIMIZER not in course.phase
    unit = "pass" if is_passes else "step"
    count = f"{steps} forward passes" if is_passes else f"{steps} steps"
    yield b.Title(f"From {unit} to {unit} ({count}, {course.source.value})")
    ends = [int(device.levels.allocated_bytes[end]) for end in course.step_ends.tolist()]
    first, last = format_bytes(ends[0], 2), format_bytes(ends[-1], 2)
    yield b.Note(f"held after {unit} 0: {first}, after {unit} {steps - 1}: {last}", indent=2)
    if not device.growth:
        yield b.Note(
            "nothing grows" if steps >= MIN_STEPS else "too few to say what grows", indent=2
        )
        return
    rows: b.Rows = [
        [
            format_bytes(int(growth.bytes_per_step)),
            format_bytes(growth.size_bytes),
            CATEGORY_LOOKS[category_of(case, growth.blocks[-1])].label,
            case.report.sites.names[growth.site],
        ]
        for growth in device.growth[:_MAX_GROWING]
    ]
    if len(device.growth) > _MAX_GROWING:
        rows.append(["", "", "", f"and {len(device.growth) - _MAX_GROWING} more places"])
    yield b.Table(
        (b.RIGHT, b.RIGHT, b.LEFT, b.Column(overflow=b.Overflow.CUT)),
        rows,
        (f"a {unit}", "in all", "owner", "where"),
    )
