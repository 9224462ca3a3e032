"""The alerts on the page, driven by keys, at 80x24 and at 200x60."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from textual.geometry import Region

from ullage.operate.watch.alerts.rules_file import DEFAULTS
from ullage.operate.watch.sample import DeviceSample, Sample
from ullage.verbs.watch.terminal.page import Details, WatchPage
from ullage.verbs.watch.terminal.rows import Rows
from ullage.verbs.watch.terminal.tree import Tree

GIB = 2**30
SIZES = [(80, 24), (200, 60)]


def gpu(index: int, errors: int = 0, *, is_lost: bool = False) -> DeviceSample:
    """A GPU with so many uncorrected memory errors."""
    name = "NVIDIA H100 80GB HBM3"
    if is_lost:
        return DeviceSample(index, f"GPU-{index}", name, is_lost=True)
    return DeviceSample(
        index, f"GPU-{index}", name, total_bytes=80 * GIB, used_bytes=GIB, free_bytes=79 * GIB,
        ecc_corrected=0, ecc_uncorrected=errors, processes=(),
    )  # fmt: skip


def course(*states: Sequence[DeviceSample]) -> list[Sample]:
    """A sample each second."""
    return [Sample(1000.0 + second, "node-1", tuple(gpus)) for second, gpus in enumerate(states)]


CALM = [gpu(0), gpu(1)]
HURT = [gpu(0), gpu(1, errors=2)]
LOST = [gpu(0, is_lost=True), gpu(1, errors=2)]


async def shown(samples: list[Sample], size: tuple[int, int], *keys: str) -> list[str]:
    """The rows of the screen at the end of the samples, after some keys."""
    page = WatchPage(iter(samples), DEFAULTS)
    async with page.run_test(size=size) as pilot:
        for _ in range(200):
            await pilot.pause(0.02)
            if page.query(Rows) and "END" in page.query_one("#head", Rows).plain:
                break
        for key in keys:
            await pilot.press(key)
        await pilot.pause()
        if not keys:
            assert not isinstance(page.screen, Details)
        return [strip.text for strip in page.screen._compositor.render_strips()]


@pytest.mark.parametrize("size", SIZES)
def test_the_newest_alert_is_first_with_its_gpu_value_and_moment(size: tuple[int, int]) -> None:
    rows = asyncio.run(shown(course(CALM, HURT, LOST), size))
    assert all(len(row) <= size[0] for row in rows)
    alerts = [row for row in rows if "  since " in row]
    assert [row.split()[:4] for row in alerts] == [
        ["critical", "gpu-lost", "GPU", "0"],
        ["critical", "ecc-uncorrected", "GPU", "1"],
    ]
    assert all("new" in row for row in alerts)
    assert "1, above 0" in alerts[0] and "2, above 0" in alerts[1]
    assert ("uncorrected memory errors in 10 min" in alerts[1]) == (size[0] >= 120)


def test_without_alerts_no_row_is_taken() -> None:
    rows = asyncio.run(shown(course(CALM, CALM), (80, 24)))
    assert not any("since" in row for row in rows)
    assert rows[21].strip() == ""  # the tree reaches down to the legend


def test_an_alert_that_is_over_leaves_and_stays_in_the_history() -> None:
    samples = course(CALM, [gpu(0, is_lost=True), gpu(1)], CALM, CALM, CALM)
    rows = asyncio.run(shown(samples, (80, 24)))
    assert not any("gpu-lost" in row for row in rows)
    text = "\n".join(asyncio.run(shown(samples, (80, 24), "l")))
    assert "Raised" in text and "none" in text
    assert "cleared critical gpu-lost: GPU 0" in text and "raised critical gpu-lost" in text
    assert text.index("cleared critical") < text.index("raised critical")


def test_more_alerts_than_rows_are_counted() -> None:
    gpus = [gpu(index, is_lost=True) for index in range(6)]
    rows = asyncio.run(shown(course(gpus), (80, 24)))
    assert sum("gpu-lost" in row for row in rows) == 2
    assert any("4 more alerts" in row for row in rows)
    rows = asyncio.run(shown(course(gpus), (80, 24), "l"))
    assert sum("critical gpu-lost  GPU" in row for row in rows) == 6


def test_only_rows_that_changed_are_drawn_again() -> None:
    """GIVEN two GPUs WHEN the second has an error within a second THEN its one row is drawn."""

    async def run() -> set[Region]:
        before, after = course(CALM, [gpu(0), gpu(1, errors=1)])
        after = replace(after, time_s=before.time_s + 0.5)  # too early for a sparkline's next point
        page = WatchPage(iter([before]))
        async with page.run_test(size=(80, 24)) as pilot:
            for _ in range(200):
                await pilot.pause(0.02)
                if "END" in page.query_one("#head", Rows).plain:
                    break
            page.take(before)  # the tree may have got its size after it was drawn first
            await pilot.pause()
            tree = page.query_one(Tree)
            regions: set[Region] = set()
            tree.refresh = lambda *areas, **_: regions.update(areas or [tree.size.region])  # type: ignore[method-assign,assignment]
            page.take(after)
            return set(regions)

    assert asyncio.run(run()) == {Region(0, 2, 80, 1)}
