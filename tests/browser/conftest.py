"""A headless Chromium without a GPU, and pages made of the recordings in tests/golden."""

from __future__ import annotations

import lzma
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ullage.answers.block_kinds import Block
from ullage.answers.html import render_page
from ullage.explain.moments.levels import find_levels
from ullage.log.model import Category
from ullage.log.replay import replay
from ullage.log.snapshot_reader import read_snapshot
from ullage.verbs.page.payload import Finding, SnapshotPage, map_of

GOLDEN = Path(__file__).parents[1] / "golden" / "snapshots"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-unsafe-swiftshader",
)  # fmt: skip


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The browser; skips where there is none."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs the package playwright (part of ullage[dev])"
    )
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("needs a Chromium on PATH (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=found, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], SnapshotPage]:
    """The page of a recording by name; with categories and modules that are made up."""
    scratch = tmp_path_factory.mktemp("recordings")
    pages: dict[str, SnapshotPage] = {}

    def make(name: str) -> SnapshotPage:
        if name not in pages:
            raw = scratch / f"{name}.pickle"
            raw.write_bytes(lzma.decompress((GOLDEN / f"{name}.pickle.xz").read_bytes()))
            snapshot = read_snapshot(raw)
            lives = replay(snapshot)
            numbers = np.arange(len(lives.blocks))
            pages[name] = SnapshotPage(
                f"{name}.pickle",
                snapshot,
                lives,
                find_levels(lives),
                category=(lives.blocks.stack % len(Category)).astype(np.uint8),
                is_guess=True,
                module=numbers % 5,
                module_names=(
                    "",
                    "model.embed",
                    "model.layers.0.mlp",
                    "model.layers.1.mlp",
                    "head",
                ),
                findings=(Finding("UL101", "A finding", "First.\n\nSecond.", 3 * 2**30),),
                summary=(("program", "train.py </script>"),),
                notes=("Categories are guesses.",),
            )
        return pages[name]

    return make


class Opened:
    """A page in the browser, and what it said and asked for."""

    def __init__(self, page: Any, path: Path) -> None:
        self.page = page
        self.messages: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.messages.append(message.text))
        page.on("pageerror", lambda error: self.messages.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        self.address = path.as_uri()

    def open(self, fragment: str = "") -> Opened:
        """Waits until it has drawn."""
        self.page.goto(self.address + fragment)
        self.page.wait_for_selector("body[data-state=ready]", timeout=30_000)
        return self

    def ask(self, script: str, argument: Any = None) -> Any:
        """What a script comes to in the page; `run`, `panel` and `page` are the first run's."""
        return self.page.evaluate(
            "(argument) => { const page = window.ullage; const panel = page.panels[0];"
            f" const run = panel.run; return ({script}); }}",
            argument,
        )

    def settle(self) -> None:
        """Waits until everything is drawn."""
        self.page.wait_for_function("() => !window.ullage.frame", timeout=10_000)

    def num_colors(self, canvas: str) -> int:
        """How many different colours a canvas shows."""
        found: int = self.page.evaluate(
            """(name) => {
              const canvas = document.querySelector(name);
              const { width, height } = canvas;
              const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
              return new Set(new Uint32Array(data.buffer)).size;
            }""",
            canvas,
        )
        return found


@pytest.fixture
def opened(
    chromium: Any, tmp_path: Path, page_of: Callable[[str], SnapshotPage]
) -> Iterator[Callable[..., Opened]]:
    """Opens the page of one recording, or of two: compared, or as devices of one program; at the
    end nothing may have gone wrong in it.
    """
    contexts = []
    pages: list[Opened] = []

    def open_page(
        *names: str, scheme: str = "light", fragment: str = "", blocks: tuple[Block, ...] = (),
        how: str = "comparison",
    ) -> Opened:  # fmt: skip
        path = tmp_path / f"{'-'.join(names)}.html"
        is_comparison = how == "comparison" and len(names) == 2
        shown = [*blocks, map_of(*map(page_of, names), is_comparison=is_comparison)]
        title = " and ".join(page_of(name).title for name in names)
        path.write_text(render_page(title, shown, {"schema": "x/1"}), encoding="utf-8")
        context = chromium.new_context(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        pages.append(Opened(context.new_page(), path))
        return pages[-1].open(fragment)

    yield open_page
    for page in pages:
        assert [text for text in page.messages if "GPU stall" not in text] == []
        assert {url.partition("#")[0] for url in page.requests} == {page.address}
    for context in contexts:
        context.close()
