"""An estimate of serving as one HTML file without script or network.

render_serving_page(estimate, document, print_answer)      the text of the file
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Any, Final

from rich.console import Console

from ullage.estimate.serving.serving_plan import ServingEstimate
from ullage.report.page.plain import render_plain
from ullage.report.page.terminal_html import to_html
from ullage.report.text.serving import serving_line

_WORDS: Final = {"fits": "Fits", "may_fit": "May fit", "does_not_fit": "Does not fit"}


def render_serving_page(
    estimate: ServingEstimate, document: Mapping[str, Any], print_answer: Callable[[Console], None]
) -> str:
    """Renders the page of an estimate of serving: the terminal's report, and its sources."""
    sources = "".join(
        f"<li>{escape(f'{term.name}: {term.source}')}</li>" for term in estimate.terms
    )
    return render_plain(
        over=estimate.model,
        word=_WORDS.get(document["verdict"], "A server"),
        kind=document["verdict"] or "none",
        lead=serving_line(estimate),
        body=f"<pre>{to_html(print_answer)}</pre>"
        f"<h2>Where each part comes from</h2><ul>{sources}</ul>",
        document=document,
    )
