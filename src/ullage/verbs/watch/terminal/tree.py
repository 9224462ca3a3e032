"""A list of lines in which one is chosen, drawn only where it is seen.

A machine may have a thousand processes: a line is made ready when it scrolls into view.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ullage.verbs.watch.terminal.rows import Painter, cut_strips
from ullage.verbs.watch.text import Line

# The position of a GPU and a process's number; which line that is changes with every sample.
Key = tuple[int | None, int | None]


class Tree(ScrollView, can_focus=True):
    """The lines; the arrow keys move the choice, and Enter inspects it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", show=False),
        Binding("up,k", "move(-1)", show=False),
        Binding("pagedown", "leaf(1)", show=False),
        Binding("pageup", "leaf(-1)", show=False),
        Binding("home", "move(-100000)", show=False),
        Binding("end", "move(100000)", show=False),
        Binding("enter", "inspect", "Inspect"),
    ]

    class Inspected(Message):
        """A line is to be inspected."""

        def __init__(self, key: Key) -> None:
            super().__init__()
            self.key = key

    def __init__(self) -> None:
        super().__init__()
        self._lines: Sequence[Line] = ()
        self._stops: list[int] = []
        self._chosen: Key = (None, None)
        self._painter = Painter(self)

    @property
    def chosen(self) -> Key:
        """Which GPU or process is chosen."""
        return self._chosen

    def show(self, lines: Sequence[Line]) -> None:
        """Takes new lines; the choice stays with its GPU or process, if that is still there."""
        before, chosen = self._lines, self._chosen
        self._lines = lines
        self._stops = [
            row
            for row, line in enumerate(lines)
            if line.position is not None and (row == 0 or _key(lines[row - 1]) != _key(line))
        ]
        if self._row() is None and self._stops:
            same = [row for row in self._stops if lines[row].position == self._chosen[0]]
            self._chosen = _key(lines[(same or self._stops)[0]])
        self.virtual_size = Size(self.size.width, len(lines))
        if len(before) != len(lines) or chosen != self._chosen:
            self.refresh()
        else:
            self._refresh_changed(before)

    def _refresh_changed(self, before: Sequence[Line]) -> None:
        """Draws the rows again that are seen and are not as they were."""
        top, width = self.scroll_offset.y, self.size.width
        window = range(top, min(top + self.size.height, len(before)))
        rows = [row for row in window if before[row] != self._lines[row]]
        if rows:
            self.refresh(*(Region(0, row - top, width, 1) for row in rows))

    def render_lines(self, crop: Region) -> list[Strip]:
        """The rows that textual draws."""
        self._painter.begin()
        top = self.scroll_offset.y
        return cut_strips([self._paint(top + y) for y in crop.line_range], crop, self.size.width)

    def _paint(self, row: int) -> Strip:
        if row >= len(self._lines):
            return self._painter.blank()
        line = self._lines[row]
        is_chosen = line.position is not None and _key(line) == self._chosen
        over = "on grey23" if is_chosen and self.has_focus else ""
        return self._painter.paint(line.text, "▌" if is_chosen else " ", over)

    def action_move(self, steps: int) -> None:
        """Moves the choice by this many GPUs, jobs or processes."""
        if not self._stops:
            return
        row = self._row()
        place = self._stops.index(row) if row in self._stops else 0
        place = min(max(place + steps, 0), len(self._stops) - 1)
        self._choose(self._stops[place])

    def action_leaf(self, pages: int) -> None:
        """Moves the choice by this many screens."""
        row = (self._row() or 0) + pages * max(self.size.height - 2, 1)
        if self._stops:
            self._choose(min(self._stops, key=lambda stop: abs(stop - row)))

    def action_inspect(self) -> None:
        """Asks for what is known of the choice."""
        if self._stops:
            self.post_message(self.Inspected(self._chosen))

    def _choose(self, row: int) -> None:
        self._chosen = _key(self._lines[row])
        last = row
        while last + 1 < len(self._lines) and _key(self._lines[last + 1]) == self._chosen:
            last += 1
        self.scroll_to_region(Region(0, row, 1, last - row + 1), animate=False)
        self.refresh()

    def _row(self) -> int | None:
        rows = (row for row in self._stops if _key(self._lines[row]) == self._chosen)
        return next(rows, None)


def _key(line: Line) -> Key:
    return line.position, line.pid
