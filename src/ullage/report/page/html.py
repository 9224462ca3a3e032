"""Memory snapshots as one HTML file that needs no network and no other file.

Path("report.html").write_text(render_snapshot(page), encoding="utf-8")
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from ullage.report.page.payload import Finding, SnapshotPage, pack_page

__all__ = ["Finding", "SnapshotPage"]

# In the order of their dependencies.
_SCRIPTS = (
    "format.js", "unpack.js", "run.js", "levels.js", "draw_gl.js", "draw_pixels.js", "map.js",
    "timeline.js", "panel.js", "treemap.js", "segments.js", "time.js", "search.js", "details.js",
    "page.js", "open.js",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """The terminal's report, which the page also shows.

    Attributes:
        verdict: the first line.
        report: the whole report as HTML (see `terminal_html`).
        document: the document of --json, for the page's element `document`.
    """

    verdict: str
    report: str
    document: Mapping[str, Any]


def render_snapshot(*pages: SnapshotPage, title: str = "", answer: Answer | None = None) -> str:
    """Renders the page of one or more devices; it shows one at a time.

    Args:
        pages: the devices; the page shows the first one at the start.
        title: the title of the whole page; default: the first device's.
        answer: the report to show with it.
    """
    return _render(pages, title or pages[0].title, answer, how="devices")


def render_comparison(
    before: SnapshotPage, after: SnapshotPage, *, answer: Answer | None = None
) -> str:
    """Renders the page of two runs, one above the other on the same axes."""
    pages = (before, after)
    return _render(pages, " and ".join(page.title for page in pages), answer, how="comparison")


def _render(pages: tuple[SnapshotPage, ...], title: str, answer: Answer | None, *, how: str) -> str:
    payloads = [
        f'<script type="application/octet-stream" class="run">{pack_page(page)}</script>'
        for page in pages
    ]
    if answer is not None:
        # Only "<" could end the element.
        document = json.dumps(answer.document, separators=(",", ":")).replace("<", "\\u003c")
        payloads.append(f'<script type="application/json" id="document">{document}</script>')
    scripts = "\n".join(_asset(name) for name in _SCRIPTS)
    # Replaced from the end to the beginning, so that no marker is searched for in inserted text.
    parts = {
        "/*script*/": f'"use strict";\n{scripts}',
        "<!--runs-->": "\n".join(payloads),
        "<!--report-->": "" if answer is None else f"<pre>{answer.report}</pre>",
        "<!--verdict-->": "" if answer is None else escape(answer.verdict),
        "<!--heading-->": escape(title),
        "<!--how-->": how,
        "/*style*/": _asset("style.css"),
        "<!--title-->": escape(title),
    }
    text = _asset("page.html")
    for mark, part in parts.items():
        before, _, after = text.partition(mark)
        text = before + part + after
    return text


def _asset(name: str) -> str:
    return (files("ullage.report") / "assets" / name).read_text(encoding="utf-8")
