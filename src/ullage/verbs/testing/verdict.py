"""The limits that the memory of a test is compared with, and how an excess is described.

lines = [*find_excess(memory, limits), *find_increase(memory, locked)]
raise pytest.fail.Exception(explain_excess(lines, memory, "h100-80gb"), pytrace=False)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ullage.ground.units import format_bytes
from ullage.verbs.testing.limits import Limits
from ullage.verbs.testing.meter import GpuMemory
from ullage.verbs.testing.owners import Owned, Place

if TYPE_CHECKING:
    from ullage.verbs.check.gate.lock import Entry

_MAX_ROWS = 5
_NO_ITERATIONS = (
    "its growth is limited, and no iterations are marked: write the loop as "
    "`for step in gpu_memory.iterations(10):`, with the fixture gpu_memory"
)


def find_excess(memory: GpuMemory, limits: Limits) -> Iterator[str]:
    """A line for each limit that the test has gone beyond, but for what it leaves behind."""
    if limits.peak_bytes is not None and memory.peak > limits.peak_bytes:
        yield _exceeds("peak", memory.peak, limits.peak_bytes)
    if limits.reserved_bytes is not None and memory.reserved_peak > limits.reserved_bytes:
        yield _exceeds("reserved peak", memory.reserved_peak, limits.reserved_bytes)
    if limits.growth_bytes is None:
        return
    growth = memory.growth
    if growth is None:
        yield _NO_ITERATIONS
    elif growth > limits.growth_bytes:
        last_sizes = ", ".join(_size(size) for size in memory.held[-3:])
        yield (
            f"growth {_size(round(growth))} after each iteration (the last ones end with "
            f"{last_sizes}), "
            f"limit {_size(limits.growth_bytes)}"
        )


def find_increase(memory: GpuMemory, locked: Entry) -> Iterator[str]:
    """A line for each peak that is higher than the locked one, by more than `ullage check` lets
    pass.
    """
    from ullage.verbs.check.gate.budget import allowed_growth

    allowed, peaks = allowed_growth(None, locked.peaks), locked.peaks
    levels = (
        ("peak", memory.peak, peaks.allocated_bytes, allowed.allocated_bytes),
        ("reserved peak", memory.reserved_peak, peaks.reserved_bytes, allowed.reserved_bytes),
    )
    for name, size, before, more in levels:
        if size > before + more:
            yield (
                f"{name} {_size(size)}, locked with torch {locked.key.torch} {_size(before)}: "
                f"{_size(size - before)} more; "
                "if it is meant to be, lock it anew with --gpu-memory-update"
            )


def explain_excess(
    lines: Sequence[str], memory: GpuMemory, gpu: str, locked: Entry | None = None
) -> str:
    """The whole message: what is too much, and whose it is where that is known."""
    parts = [f"gpu_memory: {line}" for line in lines]
    if memory.phases:
        phases = ", ".join(f"{name} {_size(size)}" for name, size in memory.phases.items())
        parts.append(f"  peak of the phases: {phases}")
    if memory.has_owners:
        owned = memory.owned()
        parts += _owner_lines(owned, memory.peak, gpu)
        if locked is not None:
            parts += _change_lines(locked.categories, owned.categories)
    return "\n".join(parts)


def explain_peak(memory: GpuMemory, gpu: str) -> str:
    """Whose the bytes at the peak are, on the phantom."""
    return "\n".join(_owner_lines(memory.owned(), memory.peak, gpu))


def explain_leak(left_bytes: int, limit_bytes: int, owned: Owned | None) -> str:
    """The message for what is still allocated after a test."""
    more = f", limit {_size(limit_bytes)}" if limit_bytes else ""
    parts = [f"gpu_memory: {_size(left_bytes)} still allocated after the test{more}"]
    if owned is not None:
        parts += _place_lines("allocated at", owned.left)
    return "\n".join(parts)


def _exceeds(name: str, size: int, limit: int) -> str:
    return f"{name} {_size(size)}, limit {_size(limit)}: {_size(size - limit)} too much"


def _owner_lines(owned: Owned, peak: int, gpu: str) -> Iterator[str]:
    basis = "exact" if not owned.assumed else f"assumed: {'; '.join(owned.assumed)}"
    before = sum(owned.categories.values()) - peak
    more = f", and {_size(before)} from before the test" if before > 0 else ""
    yield f"  at the peak of {_size(peak)}{more}, on a phantom {gpu} ({basis}):"
    for name, size in _largest(owned.categories):
        yield f"    {_size(size):>10}  {name}"
    if owned.groups:
        yield "  by module:"
    for name, size in _largest(owned.groups):
        yield f"    {_size(size):>10}  {name or 'the model itself'}"
    yield from _place_lines("allocated at", owned.places)


def _place_lines(title: str, places: Sequence[Place]) -> Iterator[str]:
    if places:
        yield f"  {title}:"
    for place in places[:_MAX_ROWS]:
        blocks = f"{place.num_blocks} blocks" if place.num_blocks > 1 else "1 block"
        where = place.where or "no line of Python, as in backward"
        yield f"    {_size(place.size_bytes):>10}  {where} ({place.category}, {blocks})"


def _change_lines(before: Mapping[str, int], after: Mapping[str, int]) -> Iterator[str]:
    names = before.keys() | after.keys()
    changes = {name: after.get(name, 0) - before.get(name, 0) for name in names}
    rows = sorted((pair for pair in changes.items() if pair[1]), key=lambda pair: -abs(pair[1]))
    if rows:
        yield "  since it was locked:"
    for name, size in rows[:_MAX_ROWS]:
        yield f"    {'+' * (size > 0) + _size(size):>10}  {name}"


def _largest(sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(sizes.items(), key=lambda pair: -pair[1])[:_MAX_ROWS]


def _size(size_bytes: int) -> str:
    return format_bytes(size_bytes, 2)
