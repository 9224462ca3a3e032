"""A page without scripts or network: a headline, what a verb shows, and its document.

render_plain(over=..., word=..., kind=..., lead=..., body=..., document=...)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

from ullage.version import __version__


def render_plain(
    *, over: str, word: str, kind: str, lead: str, body: str, document: Mapping[str, Any]
) -> str:
    """Renders the page.

    Args:
        over: what it is about, above the headline.
        word: the headline; kind: "fits", "may_fit", "does_not_fit" or another class of its style.
        lead: the answer in a line.
        body: the rest, as HTML.
        document: the document of --json.
    """
    # Only "<" could end the element.
    payload = json.dumps(document).replace("<", "\\u003c")
    style = (files("ullage.report") / "assets" / "estimate.css").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(f"{over}: {lead}")}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head>
<body><header><p class="over">{escape(over)}</p>
<h1 class="{kind}">{word}</h1><p class="lead">{escape(lead)}</p></header>
<main>{body}</main>
<footer>ullage {__version__}. The whole answer is in this file as JSON, in the element
<code>document</code>.</footer>
<script type="application/json" id="document">{payload}</script>
</body></html>
"""
