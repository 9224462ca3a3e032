"""Blocks as text for a terminal: colour where it has some, ASCII where it has no more.

render(blocks, width=80)           a short text without colour
print_blocks(blocks, full=True)    with all details, to standard output
"""

from __future__ import annotations

import io
import itertools
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from rich import table as rich_table
from rich.console import Console, ConsoleOptions, OverflowMethod, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from ullage.answers.block_kinds import (
    Assumptions,
    Bar,
    Blocks,
    Cell,
    Column,
    Headline,
    Lines,
    Note,
    Overflow,
    Row,
    Shown,
    Table,
    Title,
    Tone,
    Word,
    shown_blocks,
)
from ullage.ground.printable import printable, printable_lines

_EIGHTHS: Final = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
_LEAST_BAR, _MOST_BAR = 6, 24
_PADDING: Final = re.compile(r" +$", re.MULTILINE)
_STYLES: Final = {
    Tone.PLAIN: "", Tone.STRONG: "bold", Tone.FAINT: "dim", Tone.GOOD: "bold green",
    Tone.DOUBTFUL: "bold yellow", Tone.BAD: "bold red", Tone.WARNING: "yellow",
    Tone.LESS: "green", Tone.MORE: "red",
}  # fmt: skip
_OVERFLOWS: Final[dict[Overflow, OverflowMethod]] = {
    Overflow.FOLD: "fold", Overflow.CUT: "ellipsis", Overflow.KEEP: "ignore"
}  # fmt: skip


def render(blocks: Blocks, width: int = 80, *, full: bool = False) -> str:
    """The blocks as a text without colour, `width` columns wide."""
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None, legacy_windows=False)
    print_blocks(blocks, console, full=full)
    return file.getvalue()


def print_blocks(blocks: Blocks, console: Console | None = None, *, full: bool = False) -> None:
    """Prints the blocks, in ASCII if the console supports nothing else.

    console: default: standard output, without colour if NO_COLOR is set.
    """
    console = console or Console()
    is_ascii = console.options.ascii_only
    with console.capture() as capture:
        for block in shown_blocks(blocks, full=full):
            for part in _parts(block, console.width, "#" if is_ascii else "█"):
                # print() reads these settings only from its arguments, not from the part.
                own = part if isinstance(part, Text) else Text()
                console.print(
                    _Printable(part), highlight=False, crop=False, no_wrap=own.no_wrap,
                    overflow=own.overflow,
                )  # fmt: skip
    text = _PADDING.sub("", capture.get())
    if is_ascii:
        text = text.replace("±", "+-").encode("ascii", "replace").decode("ascii")
    console.file.write(text)


class _Printable:
    """A part of a report whose text is escaped for safe display."""

    def __init__(self, part: RenderableType) -> None:
        self._part = part

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._part, options):
            yield Segment(printable_lines(segment.text), segment.style, segment.control)


def _parts(block: Shown, width: int, bar: str) -> Iterator[RenderableType]:
    match block:
        case Headline(words):
            yield _text(words, bar)
        case Title(text, tone):
            yield Text(f"\n{text}", _STYLES[tone])
        case Note():
            yield _note(block, width)
        case Lines(lines):
            yield Text("\n".join(lines), no_wrap=True, overflow="ignore")
        case Assumptions(items):
            yield Text(_basis(items, width), no_wrap=True, overflow="ellipsis")
        case Table():
            yield _table(block, width, bar)


def _note(note: Note, width: int) -> Text:
    is_wrapped, overflow = note.overflow is Overflow.WRAP, _OVERFLOWS.get(note.overflow)
    hang = note.indent or None if note.hang is None and is_wrapped else note.hang
    text, margin = " " * note.indent + note.text, " " * (hang or 0)
    if hang is not None:
        lines = textwrap.wrap(
            note.text, width - note.margin, subsequent_indent=margin,
            initial_indent=margin if note.lead else " " * note.indent,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        most = note.max_lines or len(lines)
        if len(lines) > most:
            lines = [*lines[: most - 1], f"{lines[most - 1][: width - 4]} ..."]
        text = "\n".join(lines)
    shown = Text("\n" * note.is_apart, no_wrap=not is_wrapped, overflow=overflow)
    if note.lead is not None:
        lead = f"{' ' * note.indent}{note.lead.text}"
        shown.append(lead, _STYLES[note.lead.tone])
        text = " " * (len(margin) - len(lead)) + text[len(margin) :]
    return shown.append(text, _STYLES[note.tone])


def _basis(items: Sequence[str], width: int) -> str:
    line = "Nothing is assumed; --full prints the rest"
    for count in range(len(items), 0, -1):
        rest = len(items) - count
        more = f"--full lists {rest} more" if rest else "see --full"
        line = f"Assumed: {', '.join(items[:count])}; {more}"
        if len(line) <= width:
            break
    return line


def _table(table: Table, width: int, bar: str) -> rich_table.Table:
    """A grid; its columns are as wide as their cells, less where that is wider than the line."""
    grid = rich_table.Table.grid(padding=(0, 2, 0, 0))
    if table.is_set_in:
        grid.add_column(width=0)  # its padding is the margin, also of wrapped lines
    for column in table.columns:
        grid.add_column(
            justify="right" if column.is_right else "left", ratio=1 if column.is_rest else None,
            max_width=column.most, no_wrap=column.overflow is Overflow.KEEP,
            overflow="fold" if column.overflow is Overflow.FOLD else "ellipsis",
        )  # fmt: skip
    if any(column.is_rest for column in table.columns):
        grid.width = width
    head = [Row(table.head, Tone.FAINT)] if table.head else []
    rows = [row if isinstance(row, Row) else Row(row) for row in (*head, *table.rows)]
    margin = "" if table.is_set_in else " " * table.indent
    room = _room(rows, table, width)
    has_room_bar = any(
        isinstance(cell, Bar) and cell.width is None for row in rows for cell in row.cells
    )
    if has_room_bar and table.head and len(table.head[-1]) > room:
        rows[0] = Row(table.head[:-1], Tone.FAINT)
    for cells, tone in rows:
        texts = [_cell(cell, table.columns[at], room, bar) for at, cell in enumerate(cells)]
        if margin and texts:
            texts[0] = Text(margin).append_text(texts[0])
        grid.add_row(*[""] * table.is_set_in, *texts, style=_STYLES[tone])
    return grid


def _room(rows: Sequence[Row], table: Table, width: int) -> int:
    """Characters that the line has left for the last column; its margins are 2."""
    last = len(table.columns) - 1
    widest = [
        max((_text(row.cells[at], "").cell_len for row in rows if at < len(row.cells)), default=0)
        for at in range(last)
    ]
    return width - 2 - table.indent - sum(widest) - 2 * last


def _cell(cell: Cell, column: Column, room: int, bar: str) -> Text:
    if isinstance(cell, Bar) and cell.width is None:
        cell = replace(cell, width=min(room, _MOST_BAR)) if room >= _LEAST_BAR else ""
    elif column.hang and isinstance(cell, str):
        lines = [
            textwrap.wrap(line, room, subsequent_indent=" " * column.hang, break_long_words=False)
            for line in cell.splitlines()
        ]
        cell = Word("\n".join(itertools.chain.from_iterable(lines)))
    text = _text(cell, bar)
    if column.overflow is Overflow.CUT:
        text.overflow, text.no_wrap = "ellipsis", True
    return text


def _text(cell: Cell, bar: str) -> Text:
    match cell:
        case str():
            return Text(printable(cell))
        case Bar():
            return _bar(cell, bar)
        case (str(text), Tone() as tone):
            return Text(text, _STYLES[tone])
    return Text.assemble(*((word.text, _STYLES[word.tone]) for word in cell))


def _bar(bar: Bar, mark: str) -> Text:
    """A bar in proportion, in eighths of a column if the terminal supports them."""
    width = bar.width or 0
    eighths = round(8 * width * max(bar.size, 0) / max(bar.scale, 1))
    if eighths > 8 * width:
        return Text(mark * width + ("…" if mark == "█" else ">"), style=bar.color)
    whole, rest = divmod(max(eighths, 1), 8)
    end = _EIGHTHS[rest] if mark == "█" else mark * (rest > 3 or not whole)
    return Text((mark * whole + end) * (bar.size > 0), style=bar.color)
