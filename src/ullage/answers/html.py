"""Blocks as one HTML file that needs no network and no other file: the template of every page.

render_page("train.py", blocks, document)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any, Final

from ullage.answers.block_kinds import (
    Assumptions,
    Bar,
    Blocks,
    Cell,
    Headline,
    Lines,
    Map,
    Note,
    Plot,
    Row,
    Shown,
    Table,
    Title,
    Tone,
    Word,
    shown_blocks,
)
from ullage.answers.plot import draw_plot
from ullage.ground.version import __version__

# The map's, in the order of their dependencies.
_SCRIPTS: Final = (
    "format.js", "scale.js", "unpack.js", "run.js", "levels.js", "draw_gl.js", "draw_pixels.js",
    "map.js", "timeline.js", "panel.js", "treemap.js", "segments.js", "time.js", "search.js",
    "details.js", "page.js", "open.js",
)  # fmt: skip
_WHERE: Final = " The whole answer is in this file as JSON, in the element <code>document</code>."
_NUMBER: Final = ' class="number"'


def render_page(
    title: str, blocks: Blocks, document: Mapping[str, Any] | None = None, *,
    refresh_s: int | None = None,
) -> str:  # fmt: skip
    """The text of a page: its blocks below its title, or beside its map if it has one.

    Args:
        title: what it is about.
        blocks: the headline first.
        document: the document of --json, for the page's element `document`; None: it has none.
        refresh_s: seconds until the page is loaded again; None: it stays.
    """
    shown = list(shown_blocks(blocks, full=True))
    headline = next((block for block in shown if isinstance(block, Headline)), None)
    maps = [block for block in shown if isinstance(block, Map)]
    verdict = "" if headline is None else headline.plain
    scripts = [_payload(document)] if document is not None else []
    scripts += [
        f'<script type="application/octet-stream" class="run">{packed}</script>'
        for block in maps
        for packed in block.devices
    ]
    has_plots = any(isinstance(block, Plot) for block in shown)
    styles = ["style.css", "blocks.css", *["plot.css"] * has_plots]
    styles.append("map.css" if maps else "page.css")
    how = "comparison" if any(block.is_comparison for block in maps) else "devices"
    # Replaced from the end to the beginning, so that no marker is searched for in inserted text.
    parts = {
        "/*script*/": '"use strict";\n' + "\n".join(map(_asset, _SCRIPTS)) if maps else "",
        "<!--data-->": "\n".join(scripts),
        "<!--where-->": _WHERE if document is not None else "",
        "<!--version-->": __version__,
        "<!--blocks-->": "".join(map(_element, shown)),
        "<!--verdict-->": escape(verdict),
        "<!--heading-->": escape(title),
        "<!--how-->": how,
        "/*theme*/": _asset("theme.js"),
        "/*style*/": "".join(map(_asset, styles)),
        "<!--title-->": escape(f"{title}: {verdict}" if verdict and not maps else title),
        "<!--refresh-->": f'<meta http-equiv="refresh" content="{refresh_s}">' * bool(refresh_s),
    }
    text = _asset("page.html").replace("<!--body-->", _asset("map.html" if maps else "blocks.html"))
    for mark, part in parts.items():
        before, place, after = text.partition(mark)
        text = before + (part if place else "") + after
    return text


def _payload(document: Mapping[str, Any]) -> str:
    # Only "<" could end the element.
    text = json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="document">{text}</script>'


def _asset(name: str) -> str:
    return (files("ullage.answers") / "assets" / name).read_text(encoding="utf-8")


def _element(block: Shown) -> str:
    match block:
        case Headline(words):
            return f'<h1 class="verdict">{_words(words)}</h1>'
        case Title(text):
            return f"<h2>{escape(text)}</h2>"
        case Note(text="") | Map():
            return ""
        case Note(text, tone, hang=hang, lead=lead, is_apart=is_apart):
            code = "" if lead is None else f"<b{_class(lead.tone)}>{escape(lead.text)}</b> "
            above, left = 0.7 * is_apart, max(hang or 0, block.indent)
            place = f' style="margin:{above:g}em 0 0 min({left}ch,{left}vw)"'
            return f"<p{_class(tone)}{place}>{code}{escape(text)}</p>"
        case Lines(lines):
            return f"<pre>{escape(chr(10).join(lines))}</pre>"
        case Assumptions(items):
            return f"<p>Assumed: {escape(', '.join(items))}</p>" if items else ""
        case Table():
            return "".join(_table(block))
        case Plot():
            return draw_plot(block)


def _table(table: Table) -> Iterator[str]:
    yield '<div class="scroll"><table>'
    if any(table.head):
        yield f"<thead>{_row(table, table.head, Tone.PLAIN, 'th')}</thead>"
    yield "<tbody>"
    for row in table.rows:
        cells, tone = row if isinstance(row, Row) else (row, Tone.PLAIN)
        yield _row(table, cells, tone, "td")
    yield "</tbody></table></div>"


def _row(table: Table, cells: Sequence[Cell], tone: Tone, tag: str) -> str:
    texts = [
        f"<{tag}{_NUMBER if column.is_right else ''}>{_cell(cell)}</{tag}>"
        for cell, column in zip([*cells, *[""] * len(table.columns)], table.columns, strict=False)
    ]
    return f"<tr{_class(tone)}>{''.join(texts)}</tr>"


def _cell(cell: Cell) -> str:
    match cell:
        case str():
            return escape(cell)
        case Bar(size, scale, color):
            share = min(100.0, 100 * max(size, 0) / max(scale, 1))
            return f'<i class="bar" style="width:{share:.2f}%;background:{color}"></i>'
        case Word():
            return _words((cell,))
    return _words(cell)


def _words(words: Sequence[Word]) -> str:
    return "".join(
        f"<b{_class(word.tone)}>{escape(word.text)}</b>"
        if word.tone is not Tone.PLAIN
        else escape(word.text)
        for word in words
    )


def _class(tone: Tone) -> str:
    return f' class="{tone.value}"' if tone is not Tone.PLAIN else ""
