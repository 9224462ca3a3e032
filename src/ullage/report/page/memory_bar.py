"""A bar of a GPU's memory, as HTML without script. On a narrow screen only the shapes shrink,
and the text keeps its size.

draw_memory(parts, capacity_bytes=...)     with an axis
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, log2
from typing import Final, NamedTuple

from ullage.units import format_bytes

_NAMED_SHARE: Final = 0.13
_MARKED_SHARE: Final = 0.022
"""The fractions of the bar's width from which a part has space for its name, and for its number."""
_DARKEST_FOR_BLACK: Final = 0.179
"""The luminance at which black and white have the same contrast (WCAG 2.1)."""


class Part(NamedTuple):
    """A part of a bar."""

    name: str
    bytes: int
    color: str


def draw_memory(parts: Sequence[Part], *, gpu: str | None, capacity_bytes: int | None) -> str:
    """Draws the parts side by side, to scale, above an axis.

    Args:
        parts: in the order of their numbers.
        gpu: the name of the GPU.
        capacity_bytes: the memory of the GPU; None: there is no GPU.
    """
    used = sum(part.bytes for part in parts)
    top = max(used, capacity_bytes or 0, 1)
    label = ", ".join(f"{part.name} {format_bytes(part.bytes)}" for part in parts)
    limit = ""
    if capacity_bytes is not None:
        limit = f'<span class="limit" style="{_place(capacity_bytes, top)}"></span>'
    return (
        f'<div class="bar" role="img" aria-label="{escape(label)}">'
        f"{''.join(_segments(parts, top))}{limit}</div>"
        f'<div class="axis" aria-hidden="true">{_axis(top, gpu, capacity_bytes)}</div>'
    )


def swatch(number: int, color: str) -> str:
    """The number of a part, on a ground of its colour."""
    style = f"background:{color};color:{ink_on(color)}"
    return f'<span class="swatch" style="{style}" aria-hidden="true">{number}</span>'


def ink_on(color: str) -> str:
    """Black or white, whichever has more contrast with a colour "#rrggbb".

    Source: WCAG 2.1, relative luminance.
    """
    shares = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in shares)
    light = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#000" if light > _DARKEST_FOR_BLACK else "#fff"


def _segments(parts: Sequence[Part], top: int) -> Iterator[str]:
    at = 0
    for number, part in enumerate(parts, 1):
        if part.bytes <= 0:
            continue
        share = part.bytes / top
        text = ""
        if share > _MARKED_SHARE:
            name = f'<span class="name"> {escape(part.name)}</span>'
            text = f"{number}{name if share > _NAMED_SHARE else ''}"
        style = (
            f"{_place(at, top)};width:{_share(part.bytes, top)};"
            f"background:{part.color};color:{ink_on(part.color)}"
        )
        label = escape(f"{part.name}: {format_bytes(part.bytes)}")
        yield f'<span class="part" style="{style}" title="{label}">{text}</span>'
        at += part.bytes


def _axis(top: int, gpu: str | None, capacity_bytes: int | None) -> str:
    """The ticks, except where the name of the GPU needs the space."""
    marks = []
    if capacity_bytes is not None:
        is_last = capacity_bytes > 0.7 * top
        label = escape(f"{gpu} {format_bytes(capacity_bytes)}")
        side = "last" if is_last else "middle"
        marks.append(f'<b class="{side}" style="{_place(capacity_bytes, top)}">{label}</b>')
    for tick in _ticks(top, 5):
        is_taken = capacity_bytes is not None and abs(tick - capacity_bytes) < 0.25 * top
        if tick and not is_taken:
            marks.append(f'<span style="{_place(tick, top)}">{_tick_text(tick)}</span>')
    return "".join(marks)


def _ticks(top: int, count: int) -> range:
    """About `count` round numbers of bytes, from 0 to `top`."""
    step = 2 ** max(0, ceil(log2(top / count)))
    return range(0, top + 1, step)


def _tick_text(size: int) -> str:
    return format_bytes(size).replace(".0 ", " ")


def _share(size: int, top: int) -> str:
    return f"{100 * size / top:.3f}%"


def _place(size: int, top: int) -> str:
    return f"left:{_share(size, top)}"
