"""Measure what `ullage watch` costs beside ten GPUs at 10 Hz, and write
docs/results/speed-watch.md.

    python -m benchmarks.speed.watch [--seconds 60]

The GPUs are the phantom's: their NVML answers at once, so what is measured is ullage's own share. A
real driver takes its time in addition. Needs the extra ullage[watch].
"""

import argparse
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchmarks.provenance import made_by
from ullage.native.libraries import LIBRARY_DIR
from ullage.phantom.device import choose_device
from ullage.phantom.nvml.machine import machine_of, open_machine
from ullage.protocol.variables import DEVICE, NUM_DEVICES, PHANTOM

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "speed-watch.md"
MAIN = "from ullage.cli.main import main; main()"
NUM_GPUS = 10
WARM_UP_S = 5.0
# Of the script: name, lowest value, and how much it changes in a second.
FIGURES = (
    ("utilization", 60, 7),
    ("memory_utilization", 30, 5),
    ("temperature", 50, 1),
    ("power", 500, 11),
    ("sm_clock", 1700, 13),
    ("sm_active", 40, 3),
    ("dram_active", 20, 7),
)
GOAL_SHARE, GOAL_MIB = 0.01, 40
CASES = (
    ("`--json`, lines to nowhere", ("--json",)),
    ("`--record`, a file", ("--record", os.devnull)),
    ("the page, 80x24, drawn once a second", ()),
    ("the same; every GPU's figures change each second", ("busy",)),
)
# Reads the phantom's NVML 36,000 times under a clock that jumps by 0.1 s, as fast as it goes, and
# makes of each sample all that a page and a recording make of it.
HOUR = """
import pathlib, re, time
from ullage.report.document.watch import watch_line
from ullage.report.text.watch import Style, gpu_lines
from ullage.watch.alerts.board import Board
from ullage.watch.alerts.defaults import DEFAULTS
from ullage.watch.history import History
from ullage.watch.machine import MachineSource
from ullage.watch.nvml.library import open_nvml
from ullage.watch.view import view

def rss():
    text = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\\s+(\\d+)", text)[1])

now_s = 0.0
source = MachineSource(open_nvml(), clock=lambda: now_s)
history, board, style = History(), Board(DEFAULTS), Style(80)
for turn in range(36_000):
    now_s += 0.1
    sample = source.read()
    history.add(sample)
    seen = view(sample)
    watch_line(seen, board.take(sample))
    if turn % 10 == 0:
        for position, gpu in enumerate(seen.gpus):
            gpu_lines(gpu, position, history, style)
    if turn in (5_999, 17_999, 35_999):
        print(rss())
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """The share of a core, and the resident memory at the end, with and without file pages."""

    name: str
    share: float
    rss_mib: float
    anonymous_mib: float


def environment() -> dict[str, str]:
    """The variables under which the phantom's NVML shows ten GPUs."""
    return os.environ | {
        PHANTOM: "1",
        NUM_DEVICES: str(NUM_GPUS),
        DEVICE: choose_device(gpu="h100-80gb").environment_text(),
        "LD_LIBRARY_PATH": str(LIBRARY_DIR),
        "TERM": "xterm-256color",
    }


@contextmanager
def busy_machine() -> Iterator[dict[str, str]]:
    """The variables under which NVML shows ten GPUs whose figures change each second; the library
    reads them from a file, which costs more than a driver's answer from memory.
    """
    with tempfile.TemporaryDirectory() as name:
        node = Path(name) / "node"
        device = choose_device(gpu="h100-80gb").environment_text()
        open_machine(node, machine_of(device, "", NUM_GPUS, None))
        is_over = threading.Event()

        def change() -> None:
            turn = 0
            while not is_over.wait(1.0):
                turn += 1
                lines = [
                    f"{index} {key} {base + (turn * step + index) % 30}\n"
                    for index in range(NUM_GPUS)
                    for key, base, step in FIGURES
                ]
                (node / ".draft").write_text("".join(lines))
                (node / ".draft").replace(node / "script")

        thread = threading.Thread(target=change)
        thread.start()
        try:
            yield os.environ | {"LD_LIBRARY_PATH": str(node), "TERM": "xterm-256color"}
        finally:
            is_over.set()
            thread.join()


def cpu_s(pid: int) -> float:
    """The processor time that a process has taken, of all its threads."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int, key: str) -> float:
    """A line of /proc/PID/status."""
    match = re.search(rf"{key}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    if match is None:
        raise SystemExit(f"/proc has no {key}")
    return int(match[1]) / 1024


def measure(name: str, options: tuple[str, ...], seconds: float) -> Cost:
    """Starts the command on a terminal of its own, and watches it."""
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    is_busy = "busy" in options
    is_page = is_busy or not options
    command = [sys.executable, "-c", MAIN, "watch", "--interval", "0.1"]
    command += () if is_page else options
    if "--record" in options:
        command.append("--force")
    stream = other if is_page else subprocess.DEVNULL
    with (
        busy_machine() if is_busy else nullcontext(environment()) as variables,
        subprocess.Popen(
            command, stdin=stream, stdout=stream, stderr=stream, env=variables
        ) as process,
    ):
        threading.Thread(target=drain, args=(main,), daemon=True).start()
        time.sleep(WARM_UP_S)
        if process.poll() is not None:
            raise SystemExit(f"{name}: it ended with {process.returncode}")
        before_s, began_s = cpu_s(process.pid), time.monotonic()
        time.sleep(seconds)
        share = (cpu_s(process.pid) - before_s) / (time.monotonic() - began_s)
        cost = Cost(
            name, share, resident_mib(process.pid, "VmRSS"), resident_mib(process.pid, "RssAnon")
        )
        process.terminate()
    os.close(other)
    return cost


def drain(number: int) -> None:
    """Reads what the page draws, as a terminal does."""
    try:
        while os.read(number, 65536):
            continue
    except OSError:
        return


def play_an_hour() -> list[int]:
    """The resident KiB after 10 minutes, half an hour and an hour."""
    done = subprocess.run(
        [sys.executable, "-c", HOUR], check=True, capture_output=True, text=True, env=environment()
    )
    return [int(word) for word in done.stdout.split()]


def write_results(path: Path, costs: list[Cost], hour: list[int], seconds: float) -> None:
    """Writes docs/results/speed-watch.md."""
    load = os.getloadavg()[0]
    rows = [
        f"| {cost.name} | {cost.share:.2%} | {cost.rss_mib:.1f} | {cost.anonymous_mib:.1f} | "
        f"{'yes' if cost.share < GOAL_SHARE and cost.rss_mib < GOAL_MIB else 'no'} |"
        for cost in costs
    ]
    ten, thirty, sixty = (f"{kib / 1024:.1f}" for kib in hour)
    text = f"""\
# Cost of `ullage watch`

{made_by("benchmarks.speed.watch")}

{NUM_GPUS} GPUs of the phantom are read ten times a second for {seconds:.0f} s. Processor time is
user and system time of all threads, as a share of one core; memory is what is resident (VmRSS),
Python and its libraries included, and of that what no file backs. The phantom's NVML answers at
once: a real driver's time comes on top. The goal is under 1 % of a core and 40 MiB. The machine's
load, other programs included, was {load:.1f} on {os.cpu_count()} cores; on a busy machine a process
that wakes ten times a second finds its caches cold, and takes longer.

| what | of a core | resident, MiB | of it anonymous, MiB | goal met |
|---|---|---|---|---|
{chr(10).join(rows)}

An hour at 10 Hz, played as fast as it goes (36,000 samples, each with its line of JSON, its history
and, once a second, its lines of text): {ten} MiB are resident after 10 minutes, {thirty} MiB after
half an hour, {sixty} MiB after the hour.
"""
    path.write_text(text, encoding="utf-8")


def main() -> None:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    costs = [measure(name, words, options.seconds) for name, words in CASES]
    write_results(RESULTS, costs, play_an_hour(), options.seconds)
    print(f"Wrote {RESULTS}")


if __name__ == "__main__":
    main()
