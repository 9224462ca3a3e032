"""The parts of the text of `ullage watch`: bars, sparklines, and durations in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from rich.text import Span, Text

from ullage.ground.units import format_bytes
from ullage.operate.watch.view import GpuView

Words = tuple[str, str]  # what is written, and in which style

_LEVELS: Final = "▁▂▃▄▅▆▇█"
_ASCII_LEVELS: Final = "_.-=+*#@"


class Piece(NamedTuple):
    """A piece of a memory bar: what it is, how it is drawn, and its bytes."""

    label: str
    mark: str
    ascii_mark: str
    style: str
    num_bytes: int


class _Bar(NamedTuple):
    label: str
    mark: str
    ascii_mark: str
    style: str


# Shapes differ as well as colours: neither a monochrome terminal nor colour blindness hides them.
BARS: Final = (
    _Bar("allocated", "█", "#", "blue"),
    _Bar("fragmented", "▒", "%", "red"),
    _Bar("cached", "▓", "=", "cyan"),
    _Bar("other", "▚", "+", "yellow"),
    _Bar("free", "·", ".", "bright_black"),
)


def pieces_of(gpu: GpuView) -> list[Piece]:
    """The pieces of the GPU's memory: of recorded jobs the allocated, fragments and cache; of
    everybody else one piece; free. They sum to the total, or are empty if it is unknown.
    """
    device = gpu.device
    total, used = device.total_bytes, device.used_bytes
    if not total or used is None:
        return []
    # A job publishes once a second, the driver tells of now: the driver has the last word.
    used = min(used, total)
    allocated = min(gpu.allocated_bytes, used)
    fragmented = min(gpu.fragmented_bytes, used - allocated)
    cached = max(min(gpu.reserved_bytes, used) - allocated - fragmented, 0)
    other = used - allocated - fragmented - cached
    sizes = (allocated, fragmented, cached, other, total - used)
    return [Piece(*bar, size) for bar, size in zip(BARS, sizes, strict=True)]


def join_spans(words: Iterable[Words]) -> Text:
    """One text of words, each with its style. To append rich's texts to each other costs several
    times as much, and the page draws a hundred such rows a second.
    """
    parts, spans, end = [], [], 0
    for part, style in words:
        parts.append(part)
        start, end = end, end + len(part)
        if style and part:
            spans.append(Span(start, end, style))
    return Text("".join(parts), spans=spans)


def draw_memory(pieces: Sequence[Piece], width: int, *, is_ascii: bool) -> list[Words]:
    """The bar, `width` columns wide; whatever is not 0 has at least a column, if there is room."""
    total = sum(piece.num_bytes for piece in pieces)
    if not total:
        return [("?" * width, "bright_black")]
    columns = [round(width * piece.num_bytes / total) for piece in pieces]
    for index, piece in enumerate(pieces):
        if piece.num_bytes and not columns[index]:
            columns[index] = 1
    # Rounding is settled where a column more or less shows least.
    while sum(columns) != width:
        widest = columns.index(max(columns))
        columns[widest] += 1 if sum(columns) < width else -1
    return [
        ((piece.ascii_mark if is_ascii else piece.mark) * count, piece.style)
        for piece, count in zip(pieces, columns, strict=True)
    ]


def draw_spark(values: Sequence[float | None], width: int, *, is_ascii: bool) -> str:
    """The latest `width` values, from 0 to 1, each as a column; a space is unknown."""
    levels = _ASCII_LEVELS if is_ascii else _LEVELS
    latest = values[-width:]
    marks = [
        " " if value is None else levels[min(int(max(value, 0.0) * len(levels)), len(levels) - 1)]
        for value in latest
    ]
    return "".join(marks)


def say_size(num_bytes: int | None) -> str:
    """A size for people; "?" if it is unknown."""
    return "?" if num_bytes is None else format_bytes(num_bytes)


def say_duration(seconds: float) -> str:
    """A duration for people: "40 s", "12 min", "3 h 10 min", "5 d 2 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    if days > 999:
        return "more than 999 d"
    return f"{days} d {hours} h" if hours else f"{days} d"
