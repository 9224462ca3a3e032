"""Measure what `ullage watch` costs beside ten GPUs at 10 Hz, and write
docs/results/watch.md.

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
from benchmarks.results import publish
from benchmarks.speed.watch_hour import (
    FULL_AFTER_MINUTES,
    NUM_GPUS,
    Point,
    change_figures,
    make_machine,
    play_hour,
)
from ullage.ground.native.libraries import LIBRARY_DIR
from ullage.ground.protocol.variables import DEVICE, NUM_DEVICES, PHANTOM
from ullage.players.phantom.device import choose_device

MAIN = "from ullage.cli import main; main()"
WARM_UP_S = 5.0
GOAL_SHARE, GOAL_MIB = 0.01, 40
CASES = (
    ("`--json`, lines to nowhere", ("--json",)),
    ("`--record`, a file", ("--record", os.devnull)),
    ("the page, 80x24, drawn once a second", ()),
    ("the same; every GPU's figures change each second", ("busy",)),
)


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
        make_machine(node)
        is_over = threading.Event()

        def change() -> None:
            turn = 0
            while not is_over.wait(1.0):
                turn += 1
                change_figures(node, turn)

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


def render(costs: list[Cost], hour: list[Point], seconds: float, load: float) -> str:
    """The report."""
    rows = [
        f"| {cost.name} | {cost.share:.2%} | {cost.rss_mib:.1f} | {cost.anonymous_mib:.1f} | "
        f"{'yes' if cost.share < GOAL_SHARE and cost.rss_mib < GOAL_MIB else 'no'} |"
        for cost in costs
    ]
    course = [f"| {point.minutes} | {point.resident_kib / 1024:.2f} |" for point in hour]
    return f"""\
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

## An hour

An hour at 10 Hz, played as fast as it goes (`python -m benchmarks.speed.watch_hour`): 36,000
samples, each with its line of JSON, its history and the rules; once a second its lines of text and
the exporter's page, which is why more is resident than above. All figures of all GPUs change each
second, and a job on four of them publishes another state.

| minutes | resident, MiB |
|---|---|
{chr(10).join(course)}

Whatever is remembered is bounded: two minutes of each GPU's course, the rules' windows of up to
ten minutes and the 600 values before them that are usual, one text of each part of a sample. It is
full after {FULL_AFTER_MINUTES} minutes. Once after that, Python's table of interned strings takes
another size. A nightly test (`tests/unit/watch/test_hour.py`) counts the bytes that Python's
objects hold: there must not be more of them in the second half of the time after that than in the
first.
"""


def main() -> None:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    costs = [measure(name, words, options.seconds) for name, words in CASES]
    load = max(load, os.getloadavg()[0])
    publish("speed-watch", render(costs, play_hour(60), options.seconds, load))


if __name__ == "__main__":
    main()
