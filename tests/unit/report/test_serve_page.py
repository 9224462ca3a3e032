"""The page of a server's run: its document, its pictures, foreign text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.serve.test_curve import RUNS

from ullage.answers.block_kinds import Plot, PlotAxis, PlotMark, Series
from ullage.answers.html import render_page
from ullage.answers.plot import draw_plot
from ullage.answers.text import render
from ullage.ground.protocol.plain import document_of
from ullage.operate.serve.curve import make_curve
from ullage.operate.serve.measures import measure
from ullage.operate.serve.report import ServeReport
from ullage.operate.serve.run import Served
from ullage.operate.serve.slo import parse_slo
from ullage.verbs.serve.text import knee_line, serve_blocks


@pytest.fixture(scope="module")
def report() -> ServeReport:
    run: Any = type("Run", (), {"devices": (), "torch": "2.13.0"})()
    command = ("vllm", "serve", "</script><b>model")
    served = Served(command, "h100-80gb", RUNS[0].outcome, run, tuple(RUNS))
    slo = parse_slo("e2e=5s")
    return ServeReport(served, measure(served.outcome, slo), slo, make_curve(RUNS, slo))


def render_serve_page(report: ServeReport) -> str:
    title = " ".join(report.served.command)
    return render_page(title, serve_blocks(report), document_of(report))


def test_the_page_holds_the_document(report: ServeReport) -> None:
    page = render_serve_page(report)
    found = re.search(r'<script type="application/json" id="document">(.*?)</script>', page)
    assert found is not None
    assert json.loads(found[1]) == json.loads(json.dumps(document_of(report)))


def test_nothing_is_fetched_and_foreign_text_stays_text(report: ServeReport) -> None:
    page = render_serve_page(report)
    assert not re.search(r"""src=|<link[^>]+href="(?!data:)|@import|url\(|fetch|https?://""", page)
    assert "<b>model" not in page and "&lt;b&gt;model" in page
    assert page.count("<script") == 3


def test_the_page_has_a_picture_by_load_by_occupancy_and_over_time(report: ServeReport) -> None:
    page = render_serve_page(report)
    for words in (
        "<h2>Knee at 4 times the load", "<b>knee</b>", "time to the first token",
        "within the objective", "<h2>By the cache&#x27;s occupancy", "seconds of the traffic",
        "requests a second",
    ):  # fmt: skip
        assert words in page, words
    assert page.count("<figure") == 8


def test_the_text_has_the_knee(report: ServeReport) -> None:
    text = render(serve_blocks(report), 100)
    assert "Knee at 4 times the load" in text and "most within the objective at 8" in text
    assert "knee 4" in text and "at all loads" in text


def test_a_knee_at_the_highest_load_may_lie_beyond(report: ServeReport) -> None:
    assert report.curve is not None
    points = report.curve.points
    shorter = replace(report.curve, points=points[: points.index(report.curve.knee) + 1])
    assert knee_line(shorter).startswith("Knee at 4 times the load or beyond: ")


def test_points_are_where_their_values_are() -> None:
    drawn = draw_plot(
        Plot(
            [Series("a", [(1, 10), (10, 100, "b")])],
            PlotAxis("x", low=0, high=10, marks=[PlotMark(5, "here")]),
            PlotAxis("y", high=200, marks=[PlotMark(50, "full")]),
        )
    )
    assert 'points="100.00,950.00 1000.00,500.00"' in drawn
    assert re.search(r'class="flag after" style="left:50.00%"><b>here', drawn)
    assert (
        'level mark" style="bottom:25.00%"><b>full</b>' in drawn and 'title="b: 10, 100"' in drawn
    )
    assert [float(at) for at in re.findall(r'level" style="bottom:([\d.]+)', drawn)] == [
        0, 25, 50, 75, 100,
    ]  # fmt: skip


def test_a_logarithmic_axis_has_equal_factors_and_leaves_out_what_it_cannot_show() -> None:
    axis = PlotAxis("y", is_log=True, low=1.15, high=100 / 1.15)
    points = [(0.0, 10.0), (1.0, 0.0), (2.0, float("nan"))]
    drawn = draw_plot(Plot([Series("a", points)], PlotAxis("x", high=1.0), axis))
    assert 'points="0.00,500.00"' in drawn


def test_nothing_to_draw_is_no_picture() -> None:
    axis = PlotAxis("x")
    assert draw_plot(Plot([Series("a", [])], axis, axis)) == ""
