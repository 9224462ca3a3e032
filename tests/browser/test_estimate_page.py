"""The page of `ullage capacity -o FILE.html`: one file, for both themes and any screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ullage.verbs.capacity.function import capacity

pytestmark = pytest.mark.slow

PAGES = {
    "serving": lambda: capacity("gemma-3-1b", gpu="l4", users=4),
}


@pytest.mark.parametrize("kind", PAGES)
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 375)])
def test_it_can_be_read_and_asks_for_nothing(
    chromium: Any, tmp_path: Path, kind: str, scheme: str, width: int
) -> None:
    path = tmp_path / "page.html"
    path.write_text(PAGES[kind]().html, encoding="utf-8")
    context = chromium.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, java_script_enabled=True
    )
    page = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    assert said == [] and asked == [path.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") == width
    outside = page.evaluate(
        """() => [...document.querySelectorAll(".course *, h1, h2, p")]
          .filter((one) => one.getBoundingClientRect().right > innerWidth + 1).length"""
    )
    assert outside == 0
    context.close()
