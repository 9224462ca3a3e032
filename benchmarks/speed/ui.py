"""Measure how soon the page of `ullage ui` answers a slider, in a headless Chromium without a GPU,
and write docs/results/speed.md.

    python -m benchmarks.speed.ui [--moves 200] [--browser /usr/bin/chromium]

Needs the extra ullage[ui], the Python package playwright and a Chromium.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Page, sync_playwright

from benchmarks.provenance import made_by
from benchmarks.results import publish
from benchmarks.speed.page import FLAGS, percentile

MAIN = "from ullage.cli import main; main()"
GOAL_MS = 50
# What is called, the state that the page is opened with, and the slider that is moved.
CASES = (
    ("training llama-3.2-1b, batch", "", "batch"),
    ("training llama-3.1-8b, depth", "model=llama-3.1-8b&batch=1", "depth"),
    ("training llama-3.1-8b with FSDP, sequence", "model=llama-3.1-8b&sharding=fsdp", "length"),
    ("training bert-base, width", "model=bert-base&length=512", "width"),
    ("serving llama-3.1-8b, context", "mode=serve&model=llama-3.1-8b", "context"),
    ("serving deepseek-v3 in fp8, users", "mode=serve&model=deepseek-v3&weights=fp8", "users"),
)
# Moves the slider by one value, back at its ends, as the hand does: an input event. Gives the
# milliseconds until the answer is on the screen (the frame after the one that drew it), of these
# the server's (from the request to the answer), the processor's in it, and the script that draws.
MOVE = """async (name) => {
  const { latest } = window.ullage;
  const slider = document.getElementById(`field-${name}`);
  const { show } = latest;
  let drawn = 0;
  let script = 0;
  const done = new Promise((resolve) => {
    latest.show = (...answer) => {
      const began = performance.now();
      show(...answer);
      script = performance.now() - began;
      latest.show = show;
      requestAnimationFrame(() => setTimeout(() => { drawn = performance.now(); resolve(); }));
    };
  });
  window.direction ??= 1;
  if (slider.value === slider.max) window.direction = -1;
  if (slider.value === "0") window.direction = 1;
  performance.clearResourceTimings();
  const began = performance.now();
  slider.value = Number(slider.value) + window.direction;
  slider.dispatchEvent(new Event("input", { bubbles: true }));
  await done;
  const [request] = performance.getEntriesByType("resource").filter((one) => one.name.endsWith("/estimate"));
  return { whole: drawn - began, server: request.responseStart - request.requestStart, processor: request.serverTiming[0].duration, script };
}"""  # noqa: E501


@dataclass(frozen=True, slots=True)
class Moves:
    """All moves of a slider, in milliseconds: from the hand to the screen, and parts of that."""

    name: str
    whole: tuple[float, ...]
    server: tuple[float, ...]
    processor: tuple[float, ...]
    script: tuple[float, ...]


def move(page: Page, name: str, slider: str, count: int) -> Moves:
    """Moves a slider so many times, each time after the last answer."""
    for _ in range(10):  # code is loaded and compiled at the first
        page.evaluate(MOVE, slider)
    found: list[dict[str, Any]] = [page.evaluate(MOVE, slider) for _ in range(count)]
    parts = ("whole", "server", "processor", "script")
    return Moves(name, *(tuple(one[part] for one in found) for part in parts))


def measure(executable: str, count: int) -> list[Moves]:
    """Moves the slider of each case."""
    command = [sys.executable, "-c", MAIN, "ui", "--no-browser"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        sync_playwright() as playwright,
    ):
        if server.stdout is None:
            raise SystemExit("the server has no output")
        address = server.stdout.readline().split()[1]
        browser = playwright.chromium.launch(executable_path=executable, args=list(FLAGS))
        found = []
        for name, state, slider in CASES:
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(f"{address}#{state}")
            page.wait_for_selector("body[data-state=ready]")
            if page.evaluate("window.ullage.answer") is None:
                raise SystemExit(f"{name}: {page.inner_text('#problem')}")
            found.append(move(page, name, slider, count))
            page.close()
        browser.close()
        server.terminate()
    return found


def describe(values: Sequence[float]) -> str:
    """The median, the 95th percentile and the most."""
    middle = statistics.median(values)
    return f"**{middle:.0f}**, {percentile(values, 0.95):.0f}, {max(values):.0f}"


def render(found: Sequence[Moves], count: int) -> str:
    """The report."""
    rows = [
        f"| {one.name} | {describe(one.processor)} | {describe(one.server)} "
        f"| {describe(one.script)} | {describe(one.whole)} |"
        for one in found
    ]
    text = f"""# Speed of `ullage ui`

{made_by("benchmarks.speed.ui")}

A slider is moved as soon as the last answer is there, {count} times, in a headless Chromium
without a GPU, with 1280 x 900 pixels. The figures are the
median, the 95th percentile and the maximum. *processor* is the processor time of the server,
*server* is the wall time from the request to the answer.
*script* is the time of the drawing code. *to the screen* is the time from the input event to the
frame after the drawing. The goal is {GOAL_MS} ms. The
machine's load, other programs included, was {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.

| what | processor, ms | server, ms | script, ms | to the screen, ms |
|---|---|---|---|---|
"""
    return text + "\n".join(rows) + "\n"


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--moves", type=int, default=200)
    parser.add_argument("--browser", default=shutil.which("chromium"))
    arguments = parser.parse_args()
    if arguments.browser is None:
        parser.error("no chromium on PATH; install Debian's chromium, or name one with --browser")
    publish("speed-ui", render(measure(arguments.browser, arguments.moves), arguments.moves))


if __name__ == "__main__":
    main()
