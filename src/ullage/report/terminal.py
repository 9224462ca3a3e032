"""The parts of terminal reports: tables without lines, and bars, with functions to print them."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import (
    Console,
    ConsoleOptions,
    JustifyMethod,
    RenderableType,
    RenderResult,
)
from rich.segment import Segment
from rich.style import StyleType
from rich.table import Table
from rich.text import Text

from ullage.printable import printable, printable_lines
from ullage.report.palette import Look
from ullage.units import MIB, format_bytes

if TYPE_CHECKING:
    from ullage.estimate.term import Term

BAR_WIDTH = 32
_TERM_WIDTH = 20
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
_PADDING = re.compile(r" +$", re.MULTILINE)


def render(show: Callable[[Console], None], width: int) -> str:
    """Returns the output of `show` as a text without colour, `width` columns wide."""
    file = io.StringIO()
    show(Console(file=file, width=width, color_system=None, legacy_windows=False))
    return file.getvalue()


def print_parts(parts: Iterable[RenderableType], console: Console) -> None:
    """Prints the parts of a report, in ASCII if the console supports nothing else."""
    with console.capture() as capture:
        for part in parts:
            # print() reads these settings only from its arguments, not from the part.
            own = part if isinstance(part, Text) else Text()
            console.print(
                _Printable(part),
                highlight=False,
                crop=False,
                no_wrap=own.no_wrap,
                overflow=own.overflow,
            )
    text = _PADDING.sub("", capture.get())
    if console.options.ascii_only:
        text = text.replace("±", "+-").encode("ascii", "replace").decode("ascii")
    console.file.write(text)


class _Printable:
    """A part of a report whose text is escaped for safe display."""

    def __init__(self, part: RenderableType) -> None:
        self._part = part

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._part, options):
            yield Segment(printable_lines(segment.text), segment.style, segment.control)


class _Grid(Table):
    """A table whose cells are plain texts without markup."""

    def add_row(
        self,
        *cells: RenderableType | None,
        style: StyleType | None = None,
        end_section: bool = False,
    ) -> None:
        texts = [Text(printable(cell)) if isinstance(cell, str) else cell for cell in cells]
        super().add_row(*texts, style=style, end_section=end_section)


def bar_mark(console: Console) -> str:
    """The character for bars."""
    return "#" if console.options.ascii_only else "█"


def make_grid(*justify: JustifyMethod) -> Table:
    """Makes a table without lines; its columns are as wide as their contents."""
    table = _Grid.grid(padding=(0, 2, 0, 0))
    for side in justify:
        table.add_column(justify=side)
    return table


def terms_table(
    terms: Sequence[Term], look_of: Callable[[Any], Look], scale: int, bar: str
) -> Table:
    """The parts of a memory, each with a bar; the longest has `scale` bytes. Intervals that one
    does not see, or of less than 1 MiB, are left out.
    """
    table = make_grid("left", "right", "left", "left")
    for term in terms:
        low, likely, high = map(format_bytes, (term.low_bytes, term.bytes, term.high_bytes))
        is_wide = term.high_bytes - term.low_bytes >= MIB and not low == likely == high
        margin = f"{low} to {high}" if is_wide else ""
        picture = draw_bar(look_of(term), term.bytes, scale, bar, _TERM_WIDTH)
        table.add_row(
            f"  {term.name}", format_bytes(term.bytes), picture, Text(margin, style="dim")
        )
    return table


def draw_bar(look: Look, size: int, scale: int, bar: str, width: int = BAR_WIDTH) -> Text:
    """Draws a bar in proportion, in eighths of a column if the terminal supports them."""
    eighths = round(8 * width * max(size, 0) / max(scale, 1))
    if eighths > 8 * width:
        return Text(bar * width + ("…" if bar == "█" else ">"), style=look.color)
    whole, rest = divmod(max(eighths, 1), 8)
    end = _EIGHTHS[rest] if bar == "█" else bar * (rest > 3 or not whole)
    return Text((bar * whole + end) * (size > 0), style=look.color)
