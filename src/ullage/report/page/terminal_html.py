"""Converts a terminal report to HTML, with its colours.

to_html(lambda console: print_run(report, console))
"""

from __future__ import annotations

import io
from collections.abc import Callable
from html import escape

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

_WIDTH = 100
# A terminal's own colours, by number; style.css has shades for light and dark backgrounds.
_NAMED = {1: "red", 2: "green", 3: "yellow"}


def to_html(show: Callable[[Console], None], width: int = _WIDTH) -> str:
    """Converts the output of `show` for a `pre` element: classes `bold`, `dim` and the names of
    colours, and exact colours if the report has them.
    """
    file = io.StringIO()
    console = Console(
        file=file, width=width, color_system="truecolor", force_terminal=True, no_color=False,
        legacy_windows=False,
    )  # fmt: skip
    show(console)
    text = Text.from_ansi(file.getvalue().rstrip("\n"))
    return "".join(_element(segment) for segment in text.render(console)).rstrip()


def _element(segment: Segment) -> str:
    text, style = escape(segment.text), segment.style
    names, color = _looks(style) if style is not None else ([], "")
    if not names and not color:
        return text
    classes = f' class="{" ".join(names)}"' if names else ""
    exact = f' style="color:{color}"' if color else ""
    return f"<span{classes}{exact}>{text}</span>"


def _looks(style: Style) -> tuple[list[str], str]:
    """The classes of a style, and its exact colour if it has one."""
    names = [name for name, is_set in (("bold", style.bold), ("dim", style.dim)) if is_set]
    color = style.color
    if color is None:
        return names, ""
    if color.triplet is not None:
        return names, color.triplet.hex
    color_name = _NAMED.get(color.number or 0)
    return [*names, *filter(None, [color_name])], ""
