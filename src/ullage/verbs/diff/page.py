"""A comparison of two snapshots as one HTML file."""

from __future__ import annotations

from ullage.answers.html import render_page
from ullage.explain.compare.diff import DiffReport
from ullage.ground.errors import SpecError
from ullage.ground.protocol.plain import document_of
from ullage.verbs.diff.text import diff_blocks
from ullage.verbs.explain.page import make_page
from ullage.verbs.page.payload import map_of
from ullage.verbs.views.views import ExplainView


def render_diff_page(report: DiffReport, paths: tuple[str, str]) -> str:
    """Renders the compared device of both runs, on the same axes."""
    devices = report.before, report.after
    if devices[0] is None or devices[1] is None:
        raise SpecError("a page needs both snapshots, and one of them is not where it was written")
    before, after = (
        make_page(ExplainView(path, side, findings), device)
        for path, side, findings, device in zip(
            paths, report.sides, report.findings, (devices[0], devices[1]), strict=True
        )
    )
    blocks = [*diff_blocks(report), map_of(before, after, is_comparison=True)]
    return render_page(f"{before.title} and {after.title}", blocks, document_of(report))
