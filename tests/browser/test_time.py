"""The last step on the page of a run: memory above, the work of each stream below."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ullage.answers.html import render_page
from ullage.clock.cost import Category
from ullage.clock.step_time import Interval, Share, Span, StepTime
from ullage.explain.moments.step_levels import StepLevels
from ullage.verbs.page.payload import SnapshotPage, map_of
from ullage.verbs.page.time import StepPage

pytestmark = pytest.mark.slow

TRAINING = "wed_med_train256"
GIB = 2**30


def make_step() -> StepPage:
    """1 s: two pieces of work, one beside the other, on two streams."""
    product, messages = Category.MATRIX_PRODUCTS.value, Category.COMMUNICATION.value

    def exactly(seconds: float) -> Interval:
        return Interval(seconds, seconds, seconds)

    time = StepTime(
        step=exactly(1.0),
        steps=(exactly(1.0),),
        device_idle=exactly(0.2),
        host_waits=exactly(0.1),
        categories=(
            Share(product, exactly(0.6), exactly(0.4), 1),
            Share(messages, exactly(0.4), exactly(0.2), 1),
        ),
        parts=(), modules=(), unknown=(), flops=0.0, peak_flops_per_s=0.0, num_tokens=0,
        num_samples=0,
        spans=(
            Span(0.0, 0.1, -1, "wait", "", "", "other", 0),
            Span(0.2, 0.6, 0, "gemm </script>", product, "blocks.0", "forward", 1),
            Span(0.6, 0.4, 1, "all-reduce", messages, "", "backward", 2),
        ),
        basis=(),
    )  # fmt: skip
    levels = StepLevels(
        np.array([0.2, 0.6]), np.array([GIB, 3 * GIB]), np.array([4 * GIB, 4 * GIB])
    )
    return StepPage(time, levels)


Show = Callable[..., Any]


@pytest.fixture
def show(chromium: Any, tmp_path: Path, page_of: Callable[[str], SnapshotPage]) -> Iterator[Show]:
    """Opens a page with a step; nothing may go wrong in it."""
    contexts: list[Any] = []
    messages: list[str] = []

    def open_page(scheme: str = "light", width: int = 1280, *, has_step: bool = True) -> Any:
        path = tmp_path / "page.html"
        step = make_step() if has_step else None
        page = map_of(replace(page_of(TRAINING), step=step))
        path.write_text(render_page(TRAINING, [page]), encoding="utf-8")
        context = chromium.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-state=ready]", timeout=30_000)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [text for text in messages if "GPU stall" not in text] == []


def point(page: Any, seconds: float, lane: int) -> tuple[float, float]:
    """Where a moment of a lane is drawn, on the screen."""
    box = page.locator("#time-plot").bounding_box()
    x, y = page.evaluate(
        """([seconds, lane]) => {
          const { time } = window.ullage.activeViews;
          const place = time._layOut();
          return [place.gutter + time._x(seconds, place), place.lanes + (lane + 0.5) * place.lane];
        }""",
        [seconds, lane],
    )
    return box["x"] + x, box["y"] + y


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("dark", 420)])
def test_work_is_drawn_and_told(show: Show, scheme: str, width: int) -> None:
    page = show(scheme, width)
    page.click("[role=tab][data-tab=time]")
    assert "matrix products" in page.inner_text("#legend")
    assert "0.40 s" in page.inner_text("#legend") and "40 %" in page.inner_text("#legend")
    page.mouse.move(*point(page, 0.5, 1))
    assert "gemm </script>  ·  matrix products" in page.evaluate(
        "document.getElementById('status').textContent"
    )
    page.mouse.click(*point(page, 0.7, 2))
    assert "all-reduce" in page.inner_text("#details") and "3.0 GiB" in page.inner_text("#details")
    page.mouse.move(*point(page, 0.3, 2))
    assert page.inner_text("#status").endswith("1.0 GiB live")


def test_zoom_keeps_the_moment_and_fit_brings_all_back(show: Show) -> None:
    page = show()
    page.click("[role=tab][data-tab=time]")
    page.mouse.move(*point(page, 0.5, 1))
    page.mouse.wheel(0, -600)
    view = page.evaluate("window.ullage.activeViews.time.view")
    assert 0 < view["x0"] < 0.5 < view["x1"] < 1
    page.keyboard.press("d")
    assert page.evaluate("window.ullage.activeViews.time.view.x0") > view["x0"]
    moved = page.evaluate("window.ullage.activeViews.time.view.x0")
    x, y = point(page, 0.5, 1)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 40, y)
    page.mouse.up()
    assert page.evaluate("window.ullage.activeViews.time.view.x0") < moved
    assert page.inner_text("#details") == ""
    page.keyboard.press("0")
    assert page.evaluate("window.ullage.activeViews.time.view") == {"x0": 0, "x1": 1}


def test_the_legend_of_memory_comes_back(show: Show) -> None:
    page = show()
    before = page.inner_text("#legend")
    page.click("[role=tab][data-tab=time]")
    assert page.inner_text("#legend") != before
    page.click("[role=tab][data-tab=map]")
    assert page.inner_text("#legend") == before


def test_without_times_there_is_no_tab(show: Show) -> None:
    page = show(has_step=False)
    assert page.locator("[role=tab][data-tab=time]").count() == 0
