"""An estimate of training as one HTML file: the page of its log, with the estimate's own report."""

from __future__ import annotations

from ullage.answers.html import render_page
from ullage.ground.protocol.plain import document_of
from ullage.players.eager.training.answer import Answer
from ullage.verbs.estimate.text import estimate_blocks
from ullage.verbs.explain.page import make_pages
from ullage.verbs.page.payload import map_of
from ullage.verbs.views.views import ExplainView


def render_estimate_page(answer: Answer, view: ExplainView) -> str:
    """Renders the page of an estimate of training.

    view: its log, explained.
    """
    blocks = [*estimate_blocks(answer), map_of(*make_pages(view))]
    return render_page(answer.estimate.model, blocks, document_of(answer))
