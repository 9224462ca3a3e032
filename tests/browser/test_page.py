"""The page of a snapshot in a real browser: it shows what the file says, whatever is done to it.

That nothing is written to the console and nothing but the file is asked for is held after each test
(see `opened`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ullage.answers.block_kinds import Headline, Note, Tone
from ullage.ground.units import format_bytes
from ullage.verbs.page.payload import SnapshotPage

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[1] / "golden" / "snapshots"
NAMES = sorted(path.name.partition(".")[0] for path in GOLDEN.glob("*.pickle.xz"))
TRAINING = "wed_med_train256"
Open = Callable[..., Any]
PageOf = Callable[[str], SnapshotPage]


@pytest.mark.parametrize("name", NAMES)
def test_every_recording_opens_and_draws(opened: Open, page_of: PageOf, name: str) -> None:
    page = opened(name)
    assert page.num_colors("canvas.map") >= 3
    assert page.num_colors("canvas.strip") >= 2
    peak = int(page_of(name).levels.allocated_bytes.max())
    if not page_of(name).replay.contradictions:
        assert f"peak {format_bytes(peak)} live" in page.page.inner_text("#facts")
    for tab in ("timeline", "peak", "segments", "findings"):
        page.page.click(f"[data-tab={tab}]")
    page.settle()


def test_the_columns_arrive_as_they_were(opened: Open, page_of: PageOf) -> None:
    blocks = page_of(TRAINING).replay.blocks
    page = opened(TRAINING)
    assert page.ask("Array.from(run.birth)") == blocks.birth.tolist()
    assert page.ask("Array.from(run.death)") == blocks.death.tolist()
    assert page.ask("Array.from(run.birth, (_, i) => run.bytes(i))") == blocks.size_bytes.tolist()
    assert page.ask("Array.from(run.birth, (_, i) => run.address(i))") == blocks.address.tolist()
    stack = int(np.argmax(np.bincount(blocks.stack)))
    frames = page.ask("run.frames(argument).map((f) => [f.file, f.line, f.function])", stack)
    assert frames == [list(frame) for frame in page_of(TRAINING).snapshot.stacks.of(stack)]


@pytest.mark.parametrize("name", [TRAINING, "roy_train256_ring", "bol_xl_fwd512"])
def test_levels_are_those_of_the_trace(opened: Open, page_of: PageOf, name: str) -> None:
    levels = page_of(name).levels
    page, choose = opened(name), random.Random(0)
    events = [choose.randrange(-1, page_of(name).replay.num_events) for _ in range(200)]
    live = "argument.map((e) => panel.timeline.levels.after(e).reduce((a, b) => a + b, 0))"
    assert page.ask(live, events) == levels.allocated_bytes[np.array(events) + 1].tolist()
    reserved = "argument.map((e) => panel.timeline.levels.reservedAfter(e))"
    assert page.ask(reserved, events) == levels.reserved_bytes[np.array(events) + 1].tolist()


def test_the_highest_and_lowest_of_any_range_are_found(opened: Open, page_of: PageOf) -> None:
    allocated = page_of(TRAINING).levels.allocated_bytes
    choose = random.Random(0)
    ranges = []
    for _ in range(300):
        begin = choose.randrange(len(allocated) - 1)
        ranges.append((begin, min(len(allocated), begin + 1 + choose.choice((0, 5, 60, 90, 4000)))))
    got = opened(TRAINING).ask(
        """argument.map(([begin, end]) => {
          const { levels } = panel.timeline;
          const bytes = new Float64Array(levels.numGroups);
          const lowest = levels.readHighest(begin, end, bytes, 0);
          return [bytes.reduce((a, b) => a + b, 0), lowest];
        })""",
        ranges,
    )
    for (begin, end), (highest, lowest) in zip(ranges, got, strict=True):
        if end - begin < 64:
            wanted = allocated[begin:end]
        else:  # of whole bins
            wanted = allocated[begin // 64 * 64 : -(-end // 64) * 64]
        assert (highest, lowest) == (wanted.max(), wanted.min())


@pytest.mark.parametrize("axis", ["events", "seconds"])
def test_a_click_finds_the_block_that_lies_there(opened: Open, page_of: PageOf, axis: str) -> None:
    blocks = page_of(TRAINING).replay.blocks
    page, choose = opened(TRAINING), random.Random(1)
    page.page.select_option("#axis", axis)
    big = np.flatnonzero((blocks.size_bytes >= 2**24) & (blocks.death - blocks.birth > 400))
    for block in choose.sample(big.tolist(), 12):
        place = page.ask(
            """(() => {
              const { y, size } = run.columns;
              const canvas = panel.parts.map;
              const { y0, y1 } = panel.map.heights;
              const { birth, death } = run;
              const middle = (panel.map.xOf(birth[argument]) + panel.map.xOf(death[argument])) / 2;
              return [
                ((middle - page.view.x0) / (page.view.x1 - page.view.x0)) * canvas.clientWidth,
                ((y1 - y[argument] - size[argument] / 2) / (y1 - y0)) * canvas.clientHeight,
              ];
            })()""",
            block,
        )
        page.page.locator("canvas.map").click(position={"x": place[0], "y": place[1]})
        assert page.ask("panel.selection") == block
        assert format_bytes(int(blocks.size_bytes[block])) in page.page.inner_text("#details")


def test_details_show_the_stack(opened: Open, page_of: PageOf) -> None:
    snapshot, blocks = page_of(TRAINING).snapshot, page_of(TRAINING).replay.blocks
    block = int(np.flatnonzero(blocks.stack > 0)[100])
    page = opened(TRAINING)
    page.ask("page.select(panel, argument)", block)
    shown = page.page.text_content("#details")
    for _, _, function in snapshot.stacks.of(int(blocks.stack[block])):
        assert function in shown


def test_the_wheel_zooms_and_a_drag_moves(opened: Open) -> None:
    page = opened(TRAINING)
    whole = page.ask("page.view")
    before = page.page.locator("canvas.map").screenshot()
    page.page.locator("canvas.map").hover(position={"x": 400, "y": 200})
    for _ in range(5):
        page.page.mouse.wheel(0, -200)
    page.settle()
    near = page.ask("page.view")
    assert near["x1"] - near["x0"] < (whole["x1"] - whole["x0"]) / 3
    assert page.page.locator("canvas.map").screenshot() != before
    page.page.mouse.down()
    page.page.mouse.move(200, 300, steps=4)
    page.page.mouse.up()
    moved = page.ask("page.view")
    assert moved["x0"] > near["x0"]
    assert moved["x1"] - moved["x0"] == pytest.approx(near["x1"] - near["x0"])
    page.page.locator("canvas.map").dblclick(position={"x": 10, "y": 10})
    assert page.ask("page.view") == whole


def test_the_keyboard_does_what_the_pointer_does(opened: Open) -> None:
    page = opened(TRAINING)
    whole = page.ask("page.view")
    keys = page.page.keyboard
    for key in ("+", "+", "d", "]", "w"):
        keys.press(key)
    view, heights = page.ask("page.view"), page.ask("panel.map.heights")
    assert view["x0"] > whole["x0"] and view["x1"] - view["x0"] < whole["x1"] - whole["x0"]
    assert heights["y0"] > 0
    keys.press("0")
    assert page.ask("page.view") == whole and page.ask("panel.map.heights.y0") == 0
    for number, tab in enumerate(("map", "timeline", "peak", "segments", "findings"), start=1):
        keys.press(str(number))
        assert page.page.get_attribute("body", "data-tab") == tab
    keys.press("x")
    assert page.ask("page.axis") == "seconds"
    keys.press("t")
    assert page.page.get_attribute("html", "data-theme") == "dark"
    keys.press("/")
    assert page.page.evaluate("document.activeElement.id") == "search"


def test_search_finds_the_blocks_of_a_function(opened: Open, page_of: PageOf) -> None:
    snapshot, blocks = page_of(TRAINING).snapshot, page_of(TRAINING).replay.blocks
    stacks = snapshot.stacks
    wanted = [
        stack for stack in range(len(stacks))
        if any("softmax" in (file + "\n" + name).lower() for file, _, name in stacks.of(stack))
    ]  # fmt: skip
    is_match = np.isin(blocks.stack, wanted)
    assert 0 < is_match.sum() < len(blocks)
    page = opened(TRAINING)
    page.page.fill("#search", "softmax")
    page.page.wait_for_function("() => window.ullage.found")
    assert page.ask("page.found.blocks.length") == is_match.sum()
    assert page.ask("page.found.bytes") == blocks.size_bytes[is_match].sum()
    at_most = max(
        int(blocks.size_bytes[is_match & blocks.is_live(int(event))].sum())
        for event in np.unique(blocks.birth[is_match])
    )
    assert page.ask("page.found.highest") == at_most
    page.settle()
    page.page.keyboard.press("Enter")
    assert page.ask("panel.selection") in np.flatnonzero(is_match)
    page.page.fill("#search", "no such function")
    page.page.wait_for_function("() => window.ullage.found?.blocks.length === 0")
    assert "Nothing found" in page.page.inner_text("#details")


def test_a_search_for_a_module_finds_its_blocks(opened: Open, page_of: PageOf) -> None:
    page = opened(TRAINING)
    page.page.fill("#search", "model.embed")
    page.page.wait_for_function("() => window.ullage.found")
    assert page.ask("page.found.blocks.length") == (page_of(TRAINING).module == 1).sum()


@pytest.mark.parametrize("by", ["module", "stack", "group"])
def test_the_tiles_of_the_peak_come_to_the_peak(opened: Open, page_of: PageOf, by: str) -> None:
    peak = int(page_of(TRAINING).levels.allocated_bytes.max())
    page = opened(TRAINING)
    page.page.click("[data-tab=peak]")
    page.page.select_option("#tile-by", by)
    root = "page.activeViews.treemap.root"
    assert page.ask(f"{root}.bytes") == peak
    assert (
        page.ask(f"[...{root}.children.values()].reduce((sum, one) => sum + one.bytes, 0)") == peak
    )
    areas = page.page.evaluate(
        "[...document.querySelectorAll('.tile.depth0')]"
        ".map((tile) => (tile.offsetWidth + 1) * (tile.offsetHeight + 1))"
    )
    box = page.page.locator("#tiles").bounding_box()
    assert sum(areas) == pytest.approx(box["width"] * box["height"], rel=0.03)
    page.page.locator(".tile.depth0").first.click(position={"x": 5, "y": 5})
    assert len(page.ask("page.activeViews.treemap.trail")) in (1, 2)


def test_the_segments_are_those_of_the_file(opened: Open, page_of: PageOf) -> None:
    table = page_of(TRAINING).snapshot.segments
    page = opened(TRAINING)
    page.page.click("[data-tab=segments]")
    rows = "page.activeViews.segments.rows"
    assert page.ask(f"{rows}.reduce((sum, row) => sum + row.bytes, 0)") == table.total_bytes.sum()
    assert page.ask(f"{rows}.reduce((sum, row) => sum + row.used, 0)") == table.active_bytes.sum()
    assert page.num_colors("#segment-rows") > 5
    for order in ("size", "address"):
        page.page.select_option("#segment-by", order)
    assert page.ask(f"{rows}.map((row) => row.address)") == sorted(table.address.tolist())


@pytest.mark.parametrize(("scheme", "ground"), [("light", 255), ("dark", 18)])
def test_the_page_follows_the_systems_colors(opened: Open, scheme: str, ground: int) -> None:
    page = opened(TRAINING, scheme=scheme)
    assert page.page.get_attribute("html", "data-theme") == scheme
    corner = "panel.map.context.getImageData(0, 0, 1, 1).data[0]"
    assert page.ask(corner) == ground


def test_two_runs_share_their_axes(opened: Open, page_of: PageOf) -> None:
    names = (TRAINING, "charan_small_fwd")
    page = opened(*names)
    assert page.page.locator(".panel").count() == 2
    longest = max(page_of(name).replay.num_events for name in names)
    assert page.ask("page.view.x1") > longest
    page.page.locator("canvas.map").nth(1).hover(position={"x": 300, "y": 60})
    page.page.mouse.wheel(0, -400)
    page.settle()
    views = page.ask("page.panels.map((one) => one.drawnView)")
    assert views[0] == views[1]
    assert page.ask("new Set(page.panels.map((one) => one.timeline.topBytes)).size") == 1
    page.page.select_option("#run", "1")
    assert page.ask("page.active === page.panels[1]")


def test_a_file_that_contradicts_itself_is_told(opened: Open, page_of: PageOf) -> None:
    contradiction = page_of("mosaic_SYNTHETIC").replay.contradictions[0]
    assert contradiction in opened("mosaic_SYNTHETIC").page.inner_text("#warning")


def test_what_the_caller_says_is_shown_as_text(opened: Open) -> None:
    page = opened(TRAINING)
    page.page.click("[data-tab=findings]")
    text = page.page.inner_text("#findings")
    for part in ("UL101", "A finding", "3.0 GiB", "train.py </script>", "Categories are guesses."):
        assert part in text


def test_with_and_without_a_gpu_the_picture_is_the_same(opened: Open) -> None:
    """WebGL is computed here too; it is the same program that a GPU runs."""
    pictures = []
    for fragment in ("#pixels", "#webgl"):
        page = opened(TRAINING, fragment=fragment)
        is_gl = page.ask("panel.map.painter.constructor.name") == "GlCanvas"
        if fragment == "#webgl" and not is_gl:
            pytest.skip("this Chromium has no WebGL2, not even a computed one")
        assert is_gl == (fragment == "#webgl")
        page.settle()
        data = "panel.map.context.getImageData(0, 0, panel.parts.map.width, panel.parts.map.height)"
        pictures.append(np.array(page.ask(f"Array.from(new Uint32Array({data}.data.buffer))")))
    is_other = pictures[0] != pictures[1]
    # Where an edge falls on the middle of a pixel, 32-bit floats may round it the other way.
    assert is_other.mean() < 0.01


def test_the_report_is_a_view_and_its_document_is_in_the_page(opened: Open) -> None:
    headline = Headline.of("fits </script>", Tone.GOOD)
    page = opened(TRAINING, blocks=(headline, Note("in it", indent=2)))
    assert page.page.inner_text("#verdict") == "fits </script>"
    page.page.keyboard.press("6")
    assert page.page.inner_text("#report").split() == ["fits", "</script>", "in", "it"]
    document = "JSON.parse(document.getElementById('document').textContent)"
    assert page.ask(document) == {"schema": "x/1"}
    page.page.keyboard.press("1")
    assert not page.page.is_visible("#report")


def test_a_page_without_a_report_has_no_view_for_it(opened: Open) -> None:
    page = opened(TRAINING)
    assert page.page.locator("[data-tab=report]").count() == 0
    page.page.keyboard.press("6")
    assert page.ask("page.tab") == "map"


def test_devices_are_looked_at_one_at_a_time(opened: Open, page_of: PageOf) -> None:
    names = (TRAINING, "charan_small_fwd")
    page = opened(*names, how="devices")
    for number, name in enumerate(names):
        page.page.select_option("#run", str(number))
        page.settle()
        assert page.page.locator(".panel:visible").count() == 1
        levels = page_of(name).levels
        assert f"peak {format_bytes(int(levels.allocated_bytes.max()))}" in page.page.inner_text(
            "#facts"
        )
        view = page.ask("[page.view.x0, page.view.x1]")
        count = page_of(name).replay.num_events
        assert view[0] < 0 and count < view[1] < 1.1 * count + 10
        assert page.page.evaluate(
            """(number) => {
              const canvas = document.querySelectorAll("canvas.map")[number];
              const { width, height } = canvas;
              const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
              return new Set(new Uint32Array(data.buffer)).size;
            }""",
            number,
        ) >= 3  # fmt: skip
