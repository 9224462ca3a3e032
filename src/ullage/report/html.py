"""A memory snapshot as one HTML file that needs nothing else: no network, no other file.

Path("report.html").write_text(render_snapshot(page), encoding="utf-8")
"""

from __future__ import annotations

from html import escape
from importlib.resources import files

from ullage.report.page_payload import Finding, SnapshotPage, pack_page

__all__ = ["Finding", "SnapshotPage", "render_snapshot"]

# In the order in which they need each other.
_SCRIPTS = (
    "format.js", "unpack.js", "run.js", "levels.js", "draw_gl.js", "draw_pixels.js", "map.js",
    "timeline.js", "panel.js", "treemap.js", "segments.js", "search.js", "details.js", "page.js",
)  # fmt: skip


def render_snapshot(page: SnapshotPage, other: SnapshotPage | None = None) -> str:
    """The page of a snapshot.

    Args:
        page: what to show.
        other: a second run, shown below the first on the same axes.
    """
    pages = [page] if other is None else [page, other]
    payloads = [
        f'<script type="application/octet-stream" class="run">{pack_page(one)}</script>'
        for one in pages
    ]
    scripts = "\n".join(_asset(name) for name in _SCRIPTS)
    title = " and ".join(one.title for one in pages)
    # From the end to the beginning, so that no mark is looked for in what was put in before.
    parts = {
        "/*script*/": f'"use strict";\n{scripts}',
        "<!--runs-->": "\n".join(payloads),
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
