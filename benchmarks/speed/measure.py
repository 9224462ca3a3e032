"""Measuring processes: wall and processor time, host memory of the whole tree, milliseconds a step.

Commands that are to be compared run in turn (A B C A B C ...), so that whatever else the machine
does falls on all of them, and medians are compared.
"""

import re
import resource
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_STEP = re.compile(r"^step \d+ .*?(?P<ms>[\d.]+) ms$", re.MULTILINE)
_SAMPLE_S = 0.02


@dataclass(frozen=True, slots=True)
class Command:
    """A command line and the environment it runs in."""

    words: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Timing:
    """One execution.

    Attributes:
        wall_s: by the wall's clock.
        processor_s: of the process and of all its children that were waited for.
        steps_ms: the times that the program printed itself, in order.
        stdout: what it printed.
    """

    wall_s: float
    processor_s: float
    steps_ms: tuple[float, ...]
    stdout: str


def run_once(command: Command, directory: Path) -> Timing:
    """Run a command to its end.

    Raises: SystemExit: it failed; the message holds the end of what it wrote.
    """
    started, processor_began_s = time.perf_counter(), _children_s()
    done = subprocess.run(
        command.words,
        env=dict(command.environment),
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    wall_s, processor_s = time.perf_counter() - started, _children_s() - processor_began_s
    if done.returncode != 0:
        end = (done.stderr or done.stdout)[-2000:]
        raise SystemExit(f"{' '.join(command.words)} exited with {done.returncode}:\n{end}")
    steps_ms = tuple(float(found["ms"]) for found in _STEP.finditer(done.stdout))
    return Timing(wall_s, processor_s, steps_ms, done.stdout)


def interleave(
    commands: Mapping[str, Command], directory: Path, num_repeats: int
) -> dict[str, list[Timing]]:
    """Run every command `num_repeats` times, in turn, after one unmeasured round."""
    timings: dict[str, list[Timing]] = {name: [] for name in commands}
    for repeat in range(num_repeats + 1):
        for name, command in commands.items():
            timing = run_once(command, directory)
            if repeat > 0:  # the first fills the disk's cache
                timings[name].append(timing)
    return timings


def median_wall_s(timings: Sequence[Timing]) -> float:
    """The median of the whole process."""
    return statistics.median(timing.wall_s for timing in timings)


def median_steps_ms(timings: Sequence[Timing]) -> float:
    """The median, over executions, of all their steps together."""
    return statistics.median(sum(timing.steps_ms) for timing in timings)


def host_peak_bytes(command: Command, directory: Path) -> int:
    """The highest sum of resident memory over a command and all its children.

    Sampled every 20 ms from /proc. Pages that several processes share are counted in each of them,
    so this is an upper bound but for what lives between two samples.
    """
    peak = 0
    with subprocess.Popen(
        command.words,
        env=dict(command.environment),
        cwd=directory,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        while process.poll() is None:
            peak = max(peak, sum(_resident_bytes(pid) for pid in _tree(process.pid)))
            time.sleep(_SAMPLE_S)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command.words)} exited with {process.returncode}")
    return peak


def _children_s() -> float:
    """Processor seconds of all children that ended and were waited for, theirs included."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _tree(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for process in found:
        for children in Path(f"/proc/{process}/task").glob("*/children"):
            try:
                found += map(int, children.read_text().split())
            except OSError:
                continue
    return found


def _resident_bytes(pid: int) -> int:
    """Resident memory of one process, 0 once it has gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"^VmRSS:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
