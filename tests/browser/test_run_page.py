"""The page of a run on the phantom: its verdict, and the line at which its GPU is full."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ullage
from ullage.verbs.run.function import Run

pytestmark = [pytest.mark.slow, pytest.mark.phantom]

PROGRAM = Path(__file__).parents[1] / "programs" / "clocks.py"
CANVASES = {"map": "canvas.strip", "timeline": "canvas.strip", "time": "#time-plot"}

# The row with the most pixels of the theme's red, as a share of the height, and how many of its
# pixels these are. Text has its own shades at its edges, and none across the whole canvas.
RED_ROW = """(name) => {
  const canvas = document.querySelector(name);
  const { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  const red = parseColor(getComputedStyle(document.documentElement).getPropertyValue("--red"));
  const counts = new Array(height).fill(0);
  for (let i = 0; i < data.length; i += 4)
    if (red.every((part, n) => Math.abs(part - data[i + n]) < 3))
      counts[Math.floor(i / 4 / width)] += 1;
  const most = Math.max(...counts);
  return [counts.indexOf(most) / height, most / width];
}"""


@pytest.fixture(scope="module")
def run_on(thin_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """A timed run on a GPU of so much memory, played once."""
    directory, runs = tmp_path_factory.mktemp("runs"), {}

    def play(memory: str) -> Run:
        if memory not in runs:
            runs[memory] = ullage.run(
                (str(PROGRAM), "fused_of_few"), gpu="h100-80gb", memory=memory, time=True,
                python=thin_python, snapshot=directory / f"{memory}.pickle",
            )  # fmt: skip
        return runs[memory]

    return play


@pytest.fixture
def show(chromium: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens the page of a run; nothing may go wrong in it."""
    contexts: list[Any] = []
    said: list[str] = []

    def open_page(run: Run, scheme: str, width: int) -> Any:
        path = tmp_path / "run.html"
        path.write_text(run.html, encoding="utf-8")
        contexts.append(
            chromium.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        )
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-state=ready]", timeout=30_000)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [text for text in said if "GPU stall" not in text] == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)])
@pytest.mark.parametrize("tab", CANVASES)
def test_the_gpu_is_full_where_the_line_is(
    run_on: Callable[[str], Run], show: Callable[..., Any], tab: str, scheme: str, width: int
) -> None:
    run = run_on("4GiB")
    (device,) = run.devices
    page = show(run, scheme, width)
    page.click(f"[role=tab][data-tab={tab}]")
    page.wait_for_function("() => !window.ullage.frame")
    at, share = page.evaluate(RED_ROW, CANVASES[tab])
    capacity = page.evaluate("window.ullage.panels[0].run.header.capacity")
    room = device.totals.total_bytes - device.totals.context_bytes - device.totals.non_torch_bytes
    assert capacity["bytes"] == room > device.totals.peak_reserved_bytes
    gutter = 0 if tab != "time" else min(72, page.locator("#time-plot").bounding_box()["width"] / 5)
    whole = page.evaluate(f"document.querySelector('{CANVASES[tab]}').clientWidth")
    assert share == pytest.approx(1 - gutter / whole, abs=0.01)
    # The scale ends 5 % above the line, which is the highest that is drawn.
    drawn = page.evaluate("window.ullage.activeViews.time._layOut()")
    part = drawn["memory"] / drawn["height"] if tab == "time" else 1
    assert at == pytest.approx(part * (1 - 1 / 1.05), abs=0.02)


def test_a_gpu_that_is_far_from_full_has_its_line_at_the_upper_edge(
    run_on: Callable[[str], Run], show: Callable[..., Any]
) -> None:
    page = show(run_on("80GiB"), "light", 1280)
    at, share = page.evaluate(RED_ROW, "canvas.strip")
    assert at == 0 and share == pytest.approx(0.5, abs=0.02)  # dashed


@pytest.mark.parametrize("memory", ["4GiB", "80GiB"])
def test_the_whole_verdict_is_in_sight(
    run_on: Callable[[str], Run], show: Callable[..., Any], memory: str
) -> None:
    run = run_on(memory)
    page = show(run, "light", 1280)
    assert page.inner_text("#verdict") == run.text().splitlines()[0]
    box = page.locator("#verdict").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 1280
    assert page.evaluate("verdict.scrollWidth <= verdict.clientWidth")
