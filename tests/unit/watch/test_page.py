"""The page in the terminal, driven by keys, at 80x24 and at 200x60."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from textual.pilot import Pilot

from ullage.ground.errors import DeviceError
from ullage.ground.protocol.job import Job, JobDevice, StepPeak
from ullage.operate.watch.sample import DeviceSample, Note, ProcessKind, ProcessSample, Sample
from ullage.verbs.watch.terminal.page import Details, WatchPage
from ullage.verbs.watch.terminal.tree import Tree

GIB = 2**30
SIZES = [(80, 24), (200, 60)]


def process(pid: int, name: str = "other", gib: float = 1.0, user: str = "bob") -> ProcessSample:
    """A process of a size."""
    return ProcessSample(pid, ProcessKind.COMPUTE, int(gib * GIB), name, user)


def gpu(index: int, used: int, *processes: ProcessSample, load: float = 0.5) -> DeviceSample:
    """A GPU of 80 GiB."""
    return DeviceSample(
        index, f"GPU-{index}", "NVIDIA H100 80GB HBM3", total_bytes=80 * GIB,
        used_bytes=used * GIB, free_bytes=(80 - used) * GIB, gpu_frac=load, temperature_c=60,
        power_w=400.0, power_limit_w=700.0, sm_clock_mhz=1755, sm_clock_max_mhz=1980,
        processes=processes,
    )  # fmt: skip


def job(pid: int, index: int, growth_gib: float = 0.0) -> Job:
    """A job with 20 GiB and 30 at its steps' peaks, which may grow."""
    part = JobDevice(
        0, f"GPU-{index}", 20 * GIB, 26 * GIB, 20 * GIB, GIB, 30 * GIB, 31 * GIB, 0, 0, 0, 80 * GIB
    )
    peaks = tuple(
        StepPeak(step, int((30 + growth_gib * step) * GIB), 31 * GIB, 0.5) for step in range(20)
    )
    return Job(
        pid, 0.0, 99.0, f"train{index}.py", (part,), index, 2, "forward", 20, 0.5,
        step_peaks=peaks,
    )  # fmt: skip


SAMPLE = Sample(
    100.0,
    "node-1",
    (
        gpu(0, 30, process(10, "train0.py", 27.0, "ada"), process(30, "server"), load=0.1),
        gpu(1, 60, process(11, "train1.py", 27.0, "ada"), load=0.9),
        gpu(2, 40, *(process(100 + number) for number in range(40)), load=0.2),
        DeviceSample(3, "GPU-3", "NVIDIA H100 80GB HBM3", is_lost=True),
    ),
    (job(10, 0), job(11, 1, growth_gib=0.25)),
    (Note("ecc_corrected", "not supported", (0, 1)),),
)

Act = Callable[[WatchPage, Pilot[None]], Awaitable[None]]


def drive(act: Act, size: tuple[int, int], *samples: Sample) -> WatchPage:
    """Opens the page on samples, does something, and closes it."""
    samples = samples or (SAMPLE,)

    async def run() -> WatchPage:
        page = WatchPage(iter(samples))
        async with page.run_test(size=size) as pilot:
            await settle(page, pilot)
            await act(page, pilot)
        return page

    return asyncio.run(run())


async def settle(page: WatchPage, pilot: Pilot[None]) -> None:
    """Waits until the last sample is drawn."""
    for _ in range(100):
        if "END" in line(page, 0):
            return
        await pilot.pause(0.02)
    raise AssertionError("the samples were not drawn")


def screen(page: WatchPage) -> list[str]:
    """The rows of the screen as they are seen."""
    width, height = page.size
    strips = page.screen._compositor.render_strips()
    rows = [strip.text for strip in strips]
    assert len(rows) == height and all(len(row) <= width for row in rows)
    return rows


def line(page: WatchPage, row: int) -> str:
    """One row of the screen."""
    return screen(page)[row]


def order_of(page: WatchPage) -> list[str]:
    """The GPUs that are shown, from top to bottom."""
    lines = page.query_one(Tree)._lines
    texts = [each.text.plain for each in lines if each.position is not None]
    return [text[:5] for text in texts if text.startswith("GPU ")]


@pytest.mark.parametrize("size", SIZES)
def test_the_first_screen_has_gpus_jobs_and_limits(size: tuple[int, int]) -> None:
    async def act(page: WatchPage, pilot: Pilot[None]) -> None:
        text = "\n".join(screen(page))
        assert "node-1" in text and "4 GPUs, 2 recorded jobs" in text
        assert "GPU 0  time-sliced  NVIDIA" in text
        assert "train0.py  10  rank 0 of 2  forward  step 20, 500 ms" in text
        assert "20.0 GiB allocated, 26.0 reserved (1.0 fragmented), 46.0 to the limit" in text
        # 26 + 20 GiB are the limit, 34.75 is the last peak; 0.25 GiB and 0.5 s a step.
        assert "11.2 to the limit" in text and "full in 22 s" in text
        assert "server  30  1.0 GiB  bob" in text
        assert "by number" in text and "q quit" in text

    drive(act, size)


def test_lines_that_do_not_fit_scroll_with_the_choice() -> None:
    async def act(page: WatchPage, pilot: Pilot[None]) -> None:
        assert "LOST" not in "\n".join(screen(page))
        await pilot.press("end")
        await pilot.pause()
        (chosen,) = [row for row in screen(page) if row.startswith("▌")]
        assert "GPU 3" in chosen and "LOST" in chosen
        await pilot.press("home")
        await pilot.pause()
        assert line(page, 1).startswith("▌GPU 0")
        await pilot.press("pagedown", "pageup")
        await pilot.pause()
        assert line(page, 1).startswith("▌GPU 0")

    drive(act, (80, 24))


def test_gpus_are_sorted_by_key() -> None:
    async def act(page: WatchPage, pilot: Pilot[None]) -> None:
        orders = []
        for _ in range(5):
            orders.append("".join(name[-1] for name in order_of(page)))
            await pilot.press("s")
        assert orders == ["0123", "1203", "1203", "1023", "0123"]

    drive(act, (80, 24))


def test_a_filter_leaves_what_it_fits() -> None:
    async def act(page: WatchPage, pilot: Pilot[None]) -> None:
        bar = page.query_one(Tree)._lines[1].text.plain
        await pilot.press("slash", *"server", "enter")
        await pilot.pause()
        text = "\n".join(screen(page))
        assert order_of(page) == ["GPU 0"]
        assert "server  30" in text and "train0.py" not in text and "'server'" in text
        # The bar is still the whole GPU's.
        assert page.query_one(Tree)._lines[1].text.plain == bar
        await pilot.press("escape")
        await pilot.pause()
        assert len(order_of(page)) == 4
        await pilot.press("slash", *"nobody", "enter")
        await pilot.pause()
        assert "no GPU, job or process" in "\n".join(screen(page))

    drive(act, (80, 24))


def test_all_processes_or_none_are_shown() -> None:
    async def act(page: WatchPage, pilot: Pilot[None]) -> None:
        counts = []
        for _ in range(3):
            lines = page.query_one(Tree)._lines
            counts.append(sum("other" in each.text.plain for each in lines))
            await pilot.press("a")
        assert counts == [10, 40, 0]

    drive(act, (200, 60))


@pytest.mark.parametrize("size", SIZES)
def test_a_job_is_inspected(size: tuple[int, int]) -> None:
    async def act(page: WatchPage, pilot: Pilot[None]) -> None:
        await pilot.press("down", "enter")
        await pilot.pause()
        assert isinstance(page.screen, Details)
        text = "\n".join(screen(page))
        for row in ("train0.py", "0 of 2", "forward", "46.0 GiB", "grow", "ada", "owners"):
            assert row in text, row
        await pilot.press("o")
        for _ in range(50):
            await pilot.pause(0.02)
            if "No record of this job" in "\n".join(screen(page)):
                break
        assert "No record of this job" in "\n".join(screen(page))
        await pilot.press("escape")
        await pilot.pause()
        assert not isinstance(page.screen, Details)

    drive(act, size)


@pytest.mark.parametrize("size", SIZES)
def test_gpus_notes_and_help_have_their_frames(size: tuple[int, int]) -> None:
    async def act(page: WatchPage, pilot: Pilot[None]) -> None:
        for key, words in (
            ("enter", "GPU-0"), ("n", "ecc_corrected"), ("h", "distance to the limit"),
        ):  # fmt: skip
            await pilot.press(key)
            await pilot.pause()
            assert words in "\n".join(screen(page))
            await pilot.press("escape")
            await pilot.pause()

    drive(act, size)


def test_the_choice_stays_with_its_process_when_others_come_and_go() -> None:
    seen = replace(SAMPLE, devices=SAMPLE.devices[:1], jobs=())

    async def act(page: WatchPage, pilot: Pilot[None]) -> None:
        tree = page.query_one(Tree)
        await pilot.press("down", "down")
        chosen = tree.chosen
        first = replace(gpu(0, 30, process(5, "new", 50.0), *(SAMPLE.devices[0].processes or ())))
        page.take(replace(seen, time_s=200.0, devices=(first,)))
        assert tree.chosen == chosen == (0, 30)
        page.take(replace(seen, time_s=300.0, devices=(gpu(0, 30),)))
        assert tree.chosen == (0, None)

    drive(act, (80, 24), seen)


def test_a_page_that_is_paused_stays_as_it_is() -> None:
    async def act(page: WatchPage, pilot: Pilot[None]) -> None:
        await pilot.press("space")
        page.take(replace(SAMPLE, host="another"))
        await pilot.pause()
        assert "node-1" in line(page, 0) and "PAUSED" in line(page, 0)
        await pilot.press("space")
        page.take(replace(SAMPLE, host="another"))
        await pilot.pause()
        assert "another" in line(page, 0)

    drive(act, (80, 24))


def test_names_cannot_write_on_the_terminal() -> None:
    evil = gpu(0, 30, process(7, "a\x1b[2Jb\nc", 1.0, "\x07"))

    async def act(page: WatchPage, pilot: Pilot[None]) -> None:
        text = "\n".join(screen(page))
        assert "\x1b" not in text and "a\\x1b[2Jb\\nc" in text

    drive(act, (80, 24), replace(SAMPLE, devices=(evil,), jobs=()))


def test_a_thousand_processes_are_drawn_and_scrolled() -> None:
    many = gpu(0, 30, *(process(1000 + number, f"p{number}") for number in range(1000)))

    async def act(page: WatchPage, pilot: Pilot[None]) -> None:
        await pilot.press("a", "end")
        await pilot.pause()
        assert any(row.startswith("▌") and "p999" in row for row in screen(page))

    drive(act, (80, 24), replace(SAMPLE, devices=(many,), jobs=()))


def test_an_error_of_the_source_ends_the_page() -> None:
    def fail() -> Iterator[Sample]:
        yield SAMPLE
        raise DeviceError("the disk is full")

    async def run() -> WatchPage:
        page = WatchPage(fail())
        async with page.run_test(size=(80, 24)) as pilot:
            for _ in range(1500):  # 30 s on a busy machine
                await pilot.pause(0.02)
                if page.error is not None:
                    break
        return page

    assert isinstance(asyncio.run(run()).error, DeviceError)


def test_quitting_does_not_wait_for_the_source() -> None:
    release = threading.Event()

    def hang() -> Iterator[Sample]:
        yield SAMPLE
        release.wait(30)

    async def run() -> Any:
        page = WatchPage(hang())
        async with page.run_test(size=(80, 24)) as pilot:
            await pilot.press("q")
        return page

    page = asyncio.run(run())
    assert page.error is None
    release.set()
