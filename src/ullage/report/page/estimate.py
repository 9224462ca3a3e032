"""An estimate of training as one HTML file: the page of its log, with the estimate's own report.

render_estimate_page(answer, view)      the text of the file; the document is in it
"""

from __future__ import annotations

from ullage.estimate.training.answer import Answer as Estimated
from ullage.report.document.estimate import estimate_document
from ullage.report.page.explain import make_pages
from ullage.report.page.html import Answer, render_snapshot
from ullage.report.page.terminal_html import to_html
from ullage.report.text.estimate import estimate_line, print_estimate
from ullage.report.views import ExplainView


def render_estimate_page(answer: Estimated, view: ExplainView) -> str:
    """Renders the page of an estimate of training.

    view: its log, explained.
    """
    shown = Answer(
        estimate_line(answer),
        to_html(lambda console: print_estimate(answer, console)),
        estimate_document(answer),
    )
    return render_snapshot(*make_pages(view), title=answer.estimate.model, answer=shown)
