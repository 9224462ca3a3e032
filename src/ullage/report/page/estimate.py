"""An estimate of training as one HTML file: the page of its log, with the estimate's own report."""

from __future__ import annotations

from ullage.answers.html import render_page
from ullage.estimate.training.answer import Answer
from ullage.protocol.plain import document_of
from ullage.report.page.explain import make_pages
from ullage.report.page.payload import map_of
from ullage.report.text.estimate import estimate_blocks
from ullage.report.views import ExplainView


def render_estimate_page(answer: Answer, view: ExplainView) -> str:
    """Renders the page of an estimate of training.

    view: its log, explained.
    """
    blocks = [*estimate_blocks(answer), map_of(*make_pages(view))]
    return render_page(answer.estimate.model, blocks, document_of(answer))
