"""Rows of styled text, each made ready for the terminal once and drawn again only if it changed.

Textual's own widgets style and cut a row anew with each refresh. A page that is drawn every second
for days spends most of its time there, so these widgets keep what they have made by its content.
They have neither border nor padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

# Two screens of a tall terminal; the oldest row is forgotten first.
_MAX_KEPT: Final = 256
_Key = tuple[str, tuple[object, ...], str, str, int, Style]


class Painter:
    """Turns texts into strips for one widget; equal texts are the same strip."""

    def __init__(self, widget: Widget) -> None:
        self._widget = widget
        self._strips: dict[_Key, Strip] = {}
        self._base = Style()

    def begin(self) -> None:
        """Takes the widget's colours, which textual works out anew whenever they are asked for."""
        self._base = self._widget.rich_style

    def blank(self) -> Strip:
        """A row without text."""
        return self.paint(Text())

    def paint(self, text: Text, mark: str = "", over: str = "") -> Strip:
        """A row as wide as the widget.

        Args:
            text: what it says; what is too long is cut off.
            mark: a sign before it.
            over: a style that is laid over the whole row.
        """
        width = self._widget.size.width
        key = (text.plain, tuple(text.spans), mark, over, width, self._base)
        strip = self._strips.pop(key, None)
        if strip is None:
            if len(self._strips) >= _MAX_KEPT:
                del self._strips[next(iter(self._strips))]
            strip = self._make(text, mark, over, width)
        self._strips[key] = strip
        return strip

    def _make(self, text: Text, mark: str, over: str, width: int) -> Strip:
        console = self._widget.app.console
        segments = [Segment(mark, Style.parse("bold bright_cyan"))] if mark else []
        segments += [part for part in text.render(console, end="") if part.text]
        strip = Strip(segments)
        if over:
            strip = Strip(Segment.apply_style(strip, post_style=Style.parse(over)))
        strip = strip.adjust_cell_length(width, self._base).apply_style(self._base)
        # Textual's filters turn the sixteen colours into those of the page's theme.
        _, background = self._widget.background_colors
        for each in self._widget.get_line_filters():
            strip = strip.apply_filter(each, background)
        return strip


class Rows(Widget):
    """A few rows of text; `height` of the style is how many."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._texts: tuple[Text, ...] = ()
        self._painter = Painter(self)

    def show(self, texts: Sequence[Text]) -> None:
        """Takes other rows; those that are as before are not drawn again."""
        before, self._texts = self._texts, tuple(texts)
        if len(before) != len(self._texts):
            self.refresh()
            return
        rows = [row for row, text in enumerate(texts) if text != before[row]]
        if rows:
            self.refresh(*(Region(0, row, self.size.width, 1) for row in rows))

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(self._texts)

    @property
    def plain(self) -> str:
        """The text of the rows."""
        return "\n".join(text.plain for text in self._texts)

    def render_lines(self, crop: Region) -> list[Strip]:
        """The rows that textual draws."""
        painter = self._painter
        painter.begin()
        strips = [
            painter.paint(self._texts[row]) if row < len(self._texts) else painter.blank()
            for row in crop.line_range
        ]
        return cut_strips(strips, crop, self.size.width)


def cut_strips(strips: list[Strip], crop: Region, width: int) -> list[Strip]:
    """The columns of rows that textual asks for."""
    if crop.column_span == (0, width):
        return strips
    return [strip.crop(*crop.column_span) for strip in strips]
