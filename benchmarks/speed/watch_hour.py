"""Plays hours of `ullage watch` at 10 Hz as fast as they go, and says what memory it has after each
part.

    python -m benchmarks.speed.watch_hour --minutes 60 [--traced]

Ten GPUs of the phantom are read through its NVML under a clock that jumps by 0.1 s. All their
figures change each second, and a recorded job on four of them publishes another state each second.
Of each sample is made all that the page, a recording, the rules and the exporter make of it.

In a traced play Python's own allocations are counted (tracemalloc), which tells a leak of bytes
from a heap that settles. The first 15 minutes fill what the rules remember: they look back 10
minutes, and a minute more.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FULL_AFTER_MINUTES: Final = 15
NUM_GPUS: Final = 10
NUM_STEPS_KEPT: Final = 16
INTERVAL_S: Final = 0.1
# Of the script: name, lowest value, and how much it changes in a second.
FIGURES: Final = (
    ("utilization", 60, 7),
    ("memory_utilization", 30, 5),
    ("temperature", 50, 1),
    ("power", 500, 11),
    ("sm_clock", 1700, 13),
    ("sm_active", 40, 3),
    ("dram_active", 20, 7),
)


@dataclass(frozen=True, slots=True)
class Point:
    """The memory of the watching process after some minutes, of the watched clock.

    Attributes:
        minutes: after how many.
        resident_kib: VmRSS.
        python_bytes: what Python's objects hold, after a collection; 0: the play is not traced.
    """

    minutes: int
    resident_kib: int
    python_bytes: int


def make_machine(node: Path) -> None:
    """Makes the directory of ten GPUs whose NVML answers."""
    from ullage.players.phantom.device import choose_device
    from ullage.players.phantom.nvml.machine import machine_of, open_machine

    device = choose_device(gpu="h100-80gb").environment_text()
    open_machine(node, machine_of(device, "", NUM_GPUS, None))


def change_figures(node: Path, turn: int) -> None:
    """Gives every GPU other figures."""
    lines = [
        f"{index} {key} {base + (turn * step + index) % 30}\n"
        for index in range(NUM_GPUS)
        for key, base, step in FIGURES
    ]
    (node / ".draft").write_text("".join(lines))
    (node / ".draft").replace(node / "script")


def play_hour(minutes: int, *, is_traced: bool = False) -> list[Point]:
    """Plays in a process of its own; a point every five minutes."""
    with tempfile.TemporaryDirectory() as name:
        node = Path(name) / "node"
        make_machine(node)
        environment = {key: text for key, text in os.environ.items() if "ULLAGE" not in key} | {
            "LD_LIBRARY_PATH": str(node),
            "XDG_RUNTIME_DIR": name,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
        }
        command = [sys.executable, "-m", "benchmarks.speed.watch_hour", "--minutes", str(minutes)]
        command += ["--traced"] if is_traced else []
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env=environment
        )
    return [Point(**row) for row in json.loads(done.stdout)]


def _play(minutes: int, node: Path, *, is_traced: bool) -> Iterator[Point]:
    """In that process."""
    import time

    from ullage.ground.protocol.job import jobs_directory, publish_job
    from ullage.operate.watch.alerts.board import Board
    from ullage.operate.watch.alerts.rules_file import DEFAULTS
    from ullage.operate.watch.exporter.exposition import Exposition
    from ullage.operate.watch.history import History
    from ullage.operate.watch.machine import MachineSource
    from ullage.operate.watch.nvml.library import open_nvml
    from ullage.operate.watch.view import view
    from ullage.verbs.watch.document import watch_line
    from ullage.verbs.watch.text import Style, gpu_lines

    passed_s, begin_s = 0.0, time.time()
    jobs = jobs_directory(os.environ, make=True)
    source = MachineSource(open_nvml(), clock=lambda: passed_s)
    history, board, style, exposition = History(), Board(DEFAULTS), Style(80), Exposition()
    gc.freeze()  # as `ullage watch` does
    for turn in range(round(minutes * 60 / INTERVAL_S)):
        is_second = turn % 10 == 0
        if is_second:
            change_figures(node, turn // 10)
            publish_job(_job(turn // 10, begin_s), jobs)
        passed_s += INTERVAL_S
        sample = replace(source.read(), time_s=begin_s + passed_s)
        history.add(sample)
        machine = view(sample)
        watch_line(machine, board.take(sample))
        if is_second:
            for position, gpu in enumerate(machine.gpus):
                gpu_lines(gpu, position, history, style)
            exposition.publish(sample)
            exposition.page("text/plain")
        if (turn + 1) % round(300 / INTERVAL_S) == 0:
            if is_traced:
                gc.collect()
            python_bytes = tracemalloc.get_traced_memory()[0] if is_traced else 0
            yield Point((turn + 1) // 600, _resident_kib(), python_bytes)


def _job(step: int, begin_s: float):  # noqa: ANN202 - imported where the libraries are
    from ullage.ground.protocol.job import Job, JobDevice, StepPeak

    gib = 2**30
    uuids = _uuids()
    devices = tuple(
        JobDevice(
            place, uuids[place], (20 + step % 7) * gib, 40 * gib, (20 + step % 7) * gib,
            gib // (1 + step % 3), 27 * gib, 40 * gib, 0, 0, step // 900, 80 * gib,
        )
        for place in range(4)
    )  # fmt: skip
    first = max(step - NUM_STEPS_KEPT, 0)
    peaks = tuple(
        StepPeak(each, (26 + each % 2) * gib, 40 * gib, 0.9 + each % 5 / 50)
        for each in range(first, step)
    )
    return Job(
        os.getpid(), begin_s, begin_s + step, "train.py", devices, phase="forward",
        step=step, step_seconds=0.9 + step % 5 / 50, step_peaks=peaks,
    )  # fmt: skip


def _uuids() -> list[str]:
    import pynvml

    return [
        pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))
        for index in range(NUM_GPUS)
    ]


def _resident_kib() -> int:
    match = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
    if match is None:
        raise SystemExit("/proc has no VmRSS")
    return int(match[1])


def main() -> None:
    """Plays, and prints the points as JSON; the NVML is that of LD_LIBRARY_PATH."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--traced", action="store_true")
    options = parser.parse_args()
    node = Path(os.environ.get("LD_LIBRARY_PATH", ""))
    if not (node / "machine").exists():
        rows = play_hour(options.minutes, is_traced=options.traced)
        print(json.dumps([asdict(row) for row in rows]))
        return
    if options.traced:
        tracemalloc.start()
    points = list(_play(options.minutes, node, is_traced=options.traced))
    print(json.dumps([asdict(point) for point in points]))


if __name__ == "__main__":
    main()
