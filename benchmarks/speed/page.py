"""Measure the page of a snapshot of a million events in a headless Chromium that has no GPU, and
write docs/results/speed.md.

    python -m benchmarks.speed.page [--events 1000000] [--browser /usr/bin/chromium]

Needs the Python package playwright and a Chromium. The snapshot comes from
benchmarks.speed.generate.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.provenance import made_by
from benchmarks.results import publish
from benchmarks.speed.generate import generate_snapshot
from ullage.answers.html import render_page
from ullage.log.replay import replay
from ullage.log.snapshot_reader import read_snapshot
from ullage.verbs.page.payload import SnapshotPage, map_of

WATCH = Path(__file__).with_name("page_watch.js").read_text(encoding="utf-8")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
# What is called, the kind of movement in page_watch.js, and the share that is in view before it.
MOVES = (
    ("zoom in, from all to single events", "in", 1.0),
    ("zoom out, from a thousandth to all", "out", 0.001),
    ("drag a thousandth of it", "drag", 0.001),
    ("drag a tenth of it", "drag", 0.1),
    ("zoom addresses in and out", "addresses", 1.0),
)
FRAMES = 120
CONTROL = "the same sum in every frame, on an empty page"
WINDOW_MS = 500


@dataclass(frozen=True, slots=True)
class Opening:
    """One opening: milliseconds from the navigation, and requests for anything but the file."""

    first_paint_ms: float
    drawn_ms: float
    num_requests: int


@dataclass(frozen=True, slots=True)
class Motion:
    """A movement, made several times: processor time of all script in each frame, and frames a
    second in the slowest half second.
    """

    name: str
    script_ms: tuple[float, ...]
    lowest_fps: float


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so great a share of the others does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def lowest_fps(gaps_ms: Sequence[float]) -> float:
    """Frames a second in the slowest half second."""
    lowest = float("inf")
    for first in range(len(gaps_ms)):
        total = 0.0
        for count, gap in enumerate(gaps_ms[first:], start=1):
            total += gap
            if total >= WINDOW_MS:
                lowest = min(lowest, 1000 * count / total)
                break
    return lowest


def open_page(browser: Browser, address: str) -> tuple[Page, Opening]:
    """Opens the page in a fresh profile and waits until it has drawn."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.add_init_script(WATCH)
    page = context.new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(address)
    page.wait_for_selector("body[data-state=ready]", timeout=60_000)
    page.wait_for_timeout(300)
    paints = page.evaluate("performance.getEntriesByType('paint').map((one) => one.startTime)")
    drawn = page.evaluate("performance.getEntriesByName('drawn')[0].startTime")
    others = [url for url in requests if url != address]
    return page, Opening(min(paints, default=float("nan")), drawn, len(others))


def move(page: Page, name: str, kind: str, share: float, *, num_times: int) -> Motion:
    """Makes a movement so many times."""
    scripts, fps = [], []
    browser = page.context.browser
    if browser is None:
        raise SystemExit("the browser is gone")
    for _ in range(num_times):
        page.evaluate("(share) => window.watched.show(share)", share)
        page.wait_for_timeout(500)
        browser.start_tracing(page=page, categories=["devtools.timeline"])
        gaps = page.evaluate(
            "([kind, frames]) => window.watched.move(kind, frames)", [kind, FRAMES]
        )
        scripts += script_of_frames(json.loads(browser.stop_tracing())["traceEvents"])
        fps.append(lowest_fps(gaps))
    return Motion(name, tuple(scripts), min(fps))


def script_of_frames(events: Sequence[dict[str, Any]]) -> list[float]:
    """Milliseconds of the processor that the callbacks of each frame took, the listeners that are
    called within them included: not stretched by what else runs on the machine.

    In each frame the callback that moves the view is the last; its events tell which it is.
    """
    # One that was under way when the trace began has no duration.
    calls = [one for one in events if one["name"] == "FireAnimationFrame" and "tdur" in one]
    moved = [one["ts"] for one in events if one["name"] == "EventDispatch"]
    frames, total = [], 0.0
    for call in sorted(calls, key=lambda one: one["ts"]):
        # The processor's clock runs ahead at times: a callback takes no longer than it lasted.
        total += min(call["tdur"], call["dur"]) / 1000
        if any(call["ts"] <= at <= call["ts"] + call["dur"] for at in moved):
            frames.append(total)
            total = 0.0
    return frames


def compute(browser: Browser, num_times: int) -> Motion:
    """Does the same sum in every frame of an empty page: how steady the measuring is."""
    page = browser.new_context().new_page()
    page.add_init_script(WATCH)
    page.goto("about:blank")
    page.evaluate("(frames) => window.watched.compute(frames)", FRAMES)
    scripts: list[float] = []
    gaps: list[float] = []
    for _ in range(num_times):
        browser.start_tracing(page=page, categories=["devtools.timeline"])
        gaps += page.evaluate("(frames) => window.watched.compute(frames)", FRAMES)
        scripts += script_of_frames(json.loads(browser.stop_tracing())["traceEvents"])
    page.context.close()
    return Motion(CONTROL, tuple(scripts), lowest_fps(gaps))


def measure(path: Path, executable: str, num_times: int) -> tuple[list[Opening], list[Motion]]:
    """Opens the page so many times, then makes each movement so many times."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=list(FLAGS))
        openings = []
        for _ in range(num_times):
            page, opening = open_page(browser, path.as_uri())
            openings.append(opening)
            if len(openings) < num_times:
                page.context.close()
        motions = [
            move(page, name, kind, share, num_times=num_times) for name, kind, share in MOVES
        ]
        motions.append(compute(browser, num_times))
        browser.close()
    return openings, motions


def describe(num_bytes: int, openings: Sequence[Opening], motions: Sequence[Motion]) -> list[str]:
    """The rows of the table."""
    first = statistics.median(one.first_paint_ms for one in openings)
    drawn = [one.drawn_ms for one in openings]
    middle = statistics.median(drawn)
    rows = [
        f"| size of the HTML | **{num_bytes / 1e6:.1f} MB** | at most 10 MB |",
        f"| first paint | {first:.0f} ms | within 2 s |",
        f"| everything drawn | **{middle:.0f} ms** (slowest {max(drawn):.0f} ms) | within 2 s |",
        f"| requests but for the file | **{max(one.num_requests for one in openings)}** | 0 |",
    ]
    for one in motions:
        script = one.script_ms
        figures = f"{statistics.median(script):.1f} ms, 95 % {percentile(script, 0.95):.1f} ms"
        figures += f", most **{max(script):.1f} ms**"
        goals = ("", "") if one.name == CONTROL else ("at most 4 ms", "at least 20")
        rows += [
            f"| {one.name}: script a frame | {figures} | {goals[0]} |",
            f"| the same: frames a second | **{one.lowest_fps:.0f}** | {goals[1]} |",
        ]
    return rows


def render(snapshot: str, rows: Sequence[str], num_times: int) -> str:
    """The report."""
    load = f"The machine's load, other programs included, was {os.getloadavg()[0]:.1f}."
    text = f"""# Speed of the page

{made_by("benchmarks.speed.page")}

A headless Chromium without a GPU, with 1440 x 900 pixels, shows a snapshot from
`benchmarks.speed.generate`. An opening is timed from the navigation; figures are the median of
{num_times}. A movement has {FRAMES} frames and is made {num_times} times. *script* is the processor
time of all callbacks and listeners of a frame in Chromium's trace: the median, the 95th percentile
and the maximum of all frames. *frames a second* is that of the slowest half second. {load}
The last rows, which compute the same in every frame, show what other work disturbed.

{snapshot}

| what | measured | goal |
|---|---|---|
"""
    return text + "\n".join(rows) + "\n"


def main() -> None:
    """Makes the page, measures it, writes the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--browser", default=shutil.which("chromium"))
    parser.add_argument("--times", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.browser is None:
        parser.error("no chromium on PATH; install Debian's chromium, or name one with --browser")
    with tempfile.TemporaryDirectory() as scratch:
        raw, html = Path(scratch, "generated.pickle"), Path(scratch, "page.html")
        generate_snapshot(raw, arguments.events)
        snapshot = read_snapshot(raw)
        lives = replay(snapshot)
        if lives.contradictions:
            raise SystemExit(f"the snapshot that was made is wrong: {lives.contradictions[0]}")
        started = time.perf_counter()
        page = SnapshotPage("generated.pickle", snapshot, lives)
        text = render_page(page.title, [map_of(page)])
        took_s = time.perf_counter() - started
        html.write_text(text, encoding="utf-8")
        what = (
            f"Snapshot: {arguments.events:,} events, {len(lives.blocks):,} blocks, "
            f"{raw.stat().st_size / 1e6:.0f} MB; from its columns to the HTML {took_s:.1f} s."
        )
        openings, motions = measure(html, arguments.browser, arguments.times)
        rows = describe(html.stat().st_size, openings, motions)
    publish("speed-page", render(what, rows, arguments.times))


if __name__ == "__main__":
    main()
