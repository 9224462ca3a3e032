"""The page of a snapshot as text: what it is made of, and that it needs nothing else."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.answers.block_kinds import (
    LEFT,
    RIGHT,
    Bar,
    Headline,
    Note,
    Row,
    Rows,
    Table,
    Title,
    Tone,
    Word,
)
from ullage.answers.html import _SCRIPTS, render_page
from ullage.clock.step_time import StepTime
from ullage.explain.moments.levels import find_levels
from ullage.explain.moments.step_levels import StepLevels
from ullage.log.blocks import Blocks
from ullage.log.replay import Replay
from ullage.log.segment_lives import SegmentLives
from ullage.log.snapshot import BlockTable, Frames, SegmentTable, Snapshot, Stacks, no_events
from ullage.verbs.page.columns import Packing
from ullage.verbs.page.payload import SnapshotPage, lay_out, map_of, name_groups
from ullage.verbs.page.time import StepPage, pack_step

MIB = 2**20
NARROW = np.empty(0, np.uint32)
WIDE = np.empty(0, np.int64)
BYTE = np.empty(0, np.uint8)


def make_replay(*blocks: tuple[int, int, int, int], num_events: int = 10) -> Replay:
    """Blocks of (address, size, birth, death), each in a segment that is just as large."""
    address, size, birth, death = np.array(blocks, np.int64).reshape(-1, 4).T
    stack, zeros = np.zeros(len(size), np.uint32), size * 0
    lives = Blocks(address, size, size, birth, death, stack, zeros, size > 0, zeros, num_events)
    return Replay(lives, SegmentLives(address, size, birth, death), ())


def make_page(replay: Replay, **changes: Any) -> SnapshotPage:
    """The page of a file that has no more than blocks."""
    frames = Frames(("",), np.zeros(1, np.int64), ("",))
    stacks = Stacks(frames, np.array([0, 0]), NARROW)
    segments = SegmentTable(
        WIDE, WIDE, WIDE, WIDE, WIDE, WIDE, WIDE, BYTE, BYTE, NARROW, NARROW, np.array([0])
    )
    blocks = BlockTable(WIDE, WIDE, WIDE, WIDE, BYTE, NARROW)
    snapshot = Snapshot(
        (no_events(),), segments, blocks, (), segments, blocks, stacks, ((0, 0),), ("",), {}, (),
        None, {},
    )  # fmt: skip
    read = {"snapshot": snapshot, "replay": replay, "levels": find_levels(replay)}
    return SnapshotPage(**{"title": "run", **read, **changes})


def render_map(*pages: SnapshotPage, title: str = "", is_comparison: bool = False) -> str:
    """The page of devices, with nothing but their map."""
    return render_page(title or pages[0].title, [map_of(*pages, is_comparison=is_comparison)])


def unpack(text: str) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """What unpack.js does."""
    body = zlib.decompress(base64.b64decode(text))
    (length,) = struct.unpack_from("<I", body)
    header = json.loads(body[4 : 4 + length])
    columns, offset = {}, 4 + length
    for spec in header["columns"]:
        num_stored = spec["count"] - ("first" in spec)
        planes = np.frombuffer(body, np.uint8, num_stored * spec["width"], offset)
        offset += len(planes)
        weights = 256 ** np.arange(spec["width"], dtype=np.int64)
        values = (planes.reshape(spec["width"], num_stored).T * weights).sum(axis=1) + spec["base"]
        if "first" in spec:
            values = np.cumsum([spec["first"], *values])
        columns[spec["name"]] = values.tolist()
    assert offset == len(body)
    return header, columns


@settings(deadline=None)
@given(
    plain=st.lists(st.integers(-(2**47), 2**47)),
    ordered=st.lists(st.integers(-1, 2**50)).map(sorted),
)
def test_columns_come_back(plain: list[int], ordered: list[int]) -> None:
    packed = Packing()
    packed.add("plain", np.array(plain, np.int64))
    packed.add("ordered", np.array(ordered, np.int64), is_sorted=True)
    header, columns = unpack(packed.text({"title": "é </script>"}))
    assert columns == {"plain": plain, "ordered": ordered}
    assert header["title"] == "é </script>"
    for spec, values in zip(header["columns"], (plain, ordered), strict=True):
        assert spec["is_wide"] == any(abs(value) >= 2**31 for value in values)


def test_the_page_asks_for_nothing() -> None:
    text = render_map(make_page(make_replay((MIB, 512, 0, 4))))
    outside = re.compile(
        r"""https?:|//cdn|\bfetch\(|XMLHttpRequest|WebSocket|\bimport\b|@import|url\(|<link[^>]+href="(?!data:)"""
        r"""|\bsrc=|<iframe|<object|<embed"""
    )
    assert outside.search(text) is None
    assert "default-src 'none'" in text


def test_what_is_told_of_the_run_cannot_become_markup() -> None:
    title = "</script><script>alert(1)</script>"
    text = render_map(make_page(make_replay((MIB, 512, 0, 4)), title=title))
    assert title not in text
    assert text.count("<script") == text.count("</script>") == 3
    assert "<title>&lt;/script&gt;" in text


def test_a_title_is_no_place_for_the_parts_of_the_page() -> None:
    title = "/*style*/ /*script*/ <!--blocks-->"
    plain = render_map(make_page(make_replay()))
    assert "/*style*/ /*script*/ &lt;" in render_map(make_page(make_replay(), title=title))
    assert len(render_map(make_page(make_replay(), title=title))) < len(plain) + 200


def test_every_script_is_used_and_none_ends_the_element() -> None:
    assets = files("ullage.answers") / "assets"
    pages = {
        "page.html", "blocks.html", "map.html", "style.css", "blocks.css", "plot.css", "page.css",
        "map.css", "theme.js",
    }  # fmt: skip
    assert {one.name for one in assets.iterdir()} == {*_SCRIPTS, *pages}
    for name in _SCRIPTS:
        assert "</script" not in (assets / name).read_text(encoding="utf-8")


def test_what_is_not_data_is_small() -> None:
    assert len(render_map(make_page(make_replay()))) < 120_000


def test_two_runs_are_two_payloads() -> None:
    page = make_page(make_replay((MIB, 512, 0, 4)))
    assert render_map(page, page).count('class="run"') == 2
    assert 'data-how="devices"' in render_map(page, page)
    assert 'data-how="comparison"' in render_map(page, page, is_comparison=True)


def test_what_is_told_is_in_the_page() -> None:
    page = make_page(make_replay((MIB, 512, 0, 4)))
    document = {"schema": "ullage.run/1", "program": ["</script>", "<!--x", "é"]}
    blocks = [Headline.of("fits <on> it", Tone.GOOD), Note("a < b", Tone.FAINT), map_of(page)]
    text = render_page("run", blocks, document)
    found = re.search(r'<script type="application/json" id="document">(.*?)</script>', text)
    assert found is not None and json.loads(found[1]) == document
    assert '<strong id="verdict">fits &lt;on&gt; it</strong>' in text
    assert '<p class="faint"' in text and ">a &lt; b</p>" in text


def test_blocks_are_elements_with_their_tones_and_foreign_text_stays_text() -> None:
    rows: Rows = [
        ["<i>", (Word("x", Tone.BAD), Word("&y")), Bar(1, 4, "#0072b2")],
        Row(["total", "2"], Tone.STRONG),
    ]
    blocks = [
        Headline((Word("fits", Tone.GOOD), Word(" on t4"))), Title("Memory"),
        Table((LEFT, RIGHT, LEFT), rows, ("", "size", "")),
        Note("What", lead=Word("UL101", Tone.BAD), indent=2, hang=9),
    ]  # fmt: skip
    page = render_page("train.py", blocks, {})
    assert '<h1 class="verdict"><b class="good">fits</b> on t4</h1><h2>Memory</h2>' in page
    assert (
        "<td>&lt;i&gt;</td>" in page
        and '<td class="number"><b class="bad">x</b>&amp;y</td>' in page
    )
    assert 'style="width:25.00%;background:#0072b2"' in page
    assert '<tr class="strong"><td>total</td>' in page
    assert '<b class="bad">UL101</b> What</p>' in page
    assert "<title>train.py: fits on t4</title>" in page


RANGES = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 9), st.integers(-1, 5), st.integers(6, 10)),
    min_size=1, max_size=30,
)  # fmt: skip


@given(ranges=RANGES, unit=st.sampled_from([1, 512, 2 * MIB]))
def test_heights_keep_the_order_of_addresses_and_leave_out_the_gaps(
    ranges: list[tuple[int, int, int, int]], unit: int
) -> None:
    blocks = [(7 * unit + a * unit, n * unit, birth, death) for a, n, birth, death in ranges]
    replay = make_replay(*blocks)
    heights = lay_out(replay)
    low = heights.at(replay.blocks.address) * heights.unit_bytes
    order = np.argsort(replay.blocks.address, kind="stable")
    assert (np.diff(low[order]) >= 0).all()
    used = {a * unit + byte for a, n, _, _ in ranges for byte in range(0, n * unit, unit)}
    assert heights.total * heights.unit_bytes == len(used) * unit
    assert low.min() == 0
    # Within a range that was reserved, distances are those of the addresses.
    step = np.diff(replay.blocks.address[order])
    touches = step <= replay.blocks.size_bytes[order][:-1]
    assert (np.diff(low[order])[touches] == step[touches]).all()


def test_heights_fit_into_the_integers_of_a_gpu() -> None:
    """Addresses that no allocator of a GPU gives: odd, and far more than there is of memory."""
    replay = make_replay((1, 2**40 + 1, 0, 4), (2**46, 3, 0, 4))
    heights = lay_out(replay)
    assert heights.total < 2**31


def test_the_names_with_the_most_bytes_get_colors() -> None:
    names = [f"site {number}" for number in range(40)]
    of_block = np.array([5, 5, 30, *range(40)])
    size = np.array([100, 100, 150, *([1] * 40)])
    found = name_groups(names, of_block, size, "others")
    labels = [group["label"] for group in found["groups"]]
    assert labels[:2] == ["site 5", "site 30"]
    assert labels[-1] == "others"
    assert len({group["color"] for group in found["groups"]}) == len(labels)
    assert found["group_of_name"][5] == 0
    assert found["group_of_name"][39] == len(labels) - 1


def test_a_page_without_categories_is_colored_by_call_site() -> None:
    text = render_map(make_page(make_replay((MIB, 512, 0, 4)), capacity=(8 * MIB, "t4 is full")))
    payload = re.search(r'class="run">([^<]*)<', text)
    assert payload is not None
    header, columns = unpack(payload[1])
    assert header["capacity"] == {"bytes": 8 * MIB, "text": "t4 is full"}
    assert [grouping["by"] for grouping in header["groupings"]] == ["site"]
    assert columns["size"] == [1] and columns["life"] == [4]


def test_a_step_is_packed_to_the_nanosecond(step_time: Callable[..., StepTime]) -> None:
    packed = Packing()
    levels = StepLevels(np.array([0.02, 0.05]), np.array([203, 503]), np.array([1000, 1000]))
    time = pack_step(packed, StepPage(step_time(), levels))
    header, columns = unpack(packed.text({"time": time}))
    assert columns["span_start"] == [0, 20_000_000, 50_000_000, 130_000_000, 340_000_000]
    assert columns["span_stream"] == [-1, 0, 1, 0, 0]
    names = header["time"]["names"]
    assert [names[number] for number in columns["span_name"]] == [
        "cudaStreamSynchronize", "gemm", "all-gather", "gemm", "add</script>",
    ]  # fmt: skip
    kinds = header["time"]["kinds"]
    assert [kinds[number]["label"] for number in columns["span_kind"]][:2] == [
        "host waits", "matrix products",
    ]  # fmt: skip
    assert columns["level_allocated"] == [203, 503]
    assert [row["label"] for row in header["time"]["rows"]][-1] == "device idle"
