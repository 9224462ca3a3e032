"""The memory hierarchy of a GPU as a picture of text, 80 columns wide.

What is nearest to the arithmetic is at the top and narrowest; beside each level stand its size, its
bandwidth where it is known, and what one SM has of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ullage.gpus.levels import memory_levels
from ullage.units import GB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ullage.gpus import Gpu
    from ullage.gpus.levels import MemoryLevel

__all__ = ["draw_memory_levels", "format_rate"]

_INSIDE: Final = (20, 24, 28, 32, 36, 40)
_WIDEST: Final = 42
_TERA: Final = 1000 * GB


def draw_memory_levels(gpu: Gpu) -> str:
    """Draws the levels as boxes, one under the other, each wider than the one above it."""
    levels = memory_levels(gpu)
    boxed = [level for level in levels if level.name not in {"host link", "NVLink"}]
    lines = [_edge(None, _INSIDE[0])]
    for index, level in enumerate(boxed):
        inside = _INSIDE[index]
        below = _INSIDE[index + 1] if index + 1 < len(boxed) else None
        lines += [_body(level, inside), _edge(inside, below)]
    return "\n".join([*lines, *_links(levels[len(boxed) :])])


def format_rate(bytes_per_s: int | None) -> str:
    """Writes a bandwidth for people: "3350 GB/s", "33.5 TB/s", and nothing for one unknown."""
    if bytes_per_s is None:
        return ""
    if bytes_per_s >= 10 * _TERA:
        return f"{bytes_per_s / _TERA:.1f} TB/s"
    digits = 0 if bytes_per_s >= 100 * GB else 1
    return f"{bytes_per_s / GB:.{digits}f} GB/s"


def _body(level: MemoryLevel, inside: int) -> str:
    size = "?" if level.num_bytes is None else format_bytes(level.num_bytes)
    gap = inside - 2 - len(level.name) - len(size)
    box = f"| {level.name}{'' if gap > 0 else ' '}{' ' * max(gap, 0)}{size} |"
    beside = ", ".join(text for text in (format_rate(level.bytes_per_s), level.note) if text)
    return f"{box:^{_WIDEST}}  {beside}".rstrip()


def _edge(above: int | None, below: int | None) -> str:
    widest = max(width for width in (above, below) if width is not None)
    return f"{'+' + '-' * widest + '+':^{_WIDEST}}".rstrip()


def _links(links: Sequence[MemoryLevel]) -> list[str]:
    lines = []
    for link in links:
        rate = format_rate(link.bytes_per_s)
        each = f"{rate} each way" if link.name == "host link" and rate else rate
        beside = ", ".join(text for text in (each, link.note) if text)
        lines += [f"{'||':^{_WIDEST}}".rstrip(), f"{link.name:^{_WIDEST}}  {beside}"]
    return lines
