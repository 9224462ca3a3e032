"""A comparison of two snapshots as one HTML file.

render_diff_page(report, ("before.pickle", "after.pickle"))          the text of the file
"""

from __future__ import annotations

from ullage.errors import SpecError
from ullage.explain.compare.diff import DiffReport
from ullage.report.document.diff import diff_document
from ullage.report.page.explain import make_page
from ullage.report.page.html import Answer, render_comparison
from ullage.report.page.terminal_html import to_html
from ullage.report.text.diff import diff_line, print_diff
from ullage.report.views import ExplainView


def render_diff_page(report: DiffReport, paths: tuple[str, str]) -> str:
    """Renders the compared device of both runs, on the same axes."""
    devices = report.before, report.after
    if devices[0] is None or devices[1] is None:
        raise SpecError("--html needs both snapshots, and one of them is not where it was written")
    before, after = (
        make_page(ExplainView(path, side, findings), device)
        for path, side, findings, device in zip(
            paths, report.sides, report.findings, (devices[0], devices[1]), strict=True
        )
    )
    answer = Answer(
        diff_line(report),
        to_html(lambda console: print_diff(report, console)),
        diff_document(report),
    )
    return render_comparison(before, after, answer=answer)
