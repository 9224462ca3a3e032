"""Writes the recorded courses that the alert rules are tested with, into tests/golden/courses.

    python -m benchmarks.watch.courses --python .envs/torch-newest/bin/python [NAME ...]

A program runs on the phantom for each (benchmarks/watch/programs/train.py), and publishes its
allocator's counters as a recorded job does. A step takes the time that the program says, so that
hours pass in seconds. What no phantom can produce is scripted on top of a healthy job: heat, errors
of memory, power, a lost GPU, a load that falls; so are the driver's utilisation and power of every
course, and a second job on the GPU, which ran on a phantom of its own.
"""

from __future__ import annotations

import argparse
import lzma
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.watch.sampling import Log, load_log, take_samples
from ullage.operate.watch.sample import DeviceSample, Sample
from ullage.operate.watch.sample_json import sample_to_line

__all__ = ["COURSES", "Course", "make_course"]

ROOT: Final = Path(__file__).parents[2]
DIRECTORY: Final = ROOT / "tests" / "golden" / "courses"
_PROGRAM: Final = Path(__file__).parent / "programs" / "train.py"
_GPU: Final = "rtx-4090"
_START_S: Final = 1_790_000_000.0


@dataclass(frozen=True, slots=True)
class Program:
    """A program of a course: its fault, number, rank, and when it begins (s)."""

    fault: str
    pid: int = 4711
    rank: int | None = None
    begin_s: float = 0.0
    gpu: str = _GPU


@dataclass(frozen=True, slots=True)
class Course:
    """How a course is made.

    Attributes:
        programs: what runs.
        interval_s: between two samples.
        is_published: whether the jobs publish themselves.
        script: the changes to the fields of GPU 0 from the seconds since the begin.
    """

    programs: tuple[Program, ...]
    interval_s: float = 4.0
    is_published: bool = True
    script: Callable[[float, DeviceSample], dict[str, Any]] | None = None


def _hot(time_s: float, _: DeviceSample) -> dict[str, Any]:
    if not 200 <= time_s < 400:
        return {}
    return {"temperature_c": 89, "throttle_reasons": frozenset({"sw_thermal_slowdown"})}


def _faulty(time_s: float, _: DeviceSample) -> dict[str, Any]:
    """Counters that rise, and jump back with the driver's reset."""
    if time_s < 200:
        return {"ecc_corrected": 3, "ecc_uncorrected": 1}
    if time_s < 500:
        return {"ecc_corrected": 3 + int(time_s - 200), "ecc_uncorrected": 2}
    return {"ecc_corrected": 0, "ecc_uncorrected": 0}


def _lost(time_s: float, gpu: DeviceSample) -> dict[str, Any]:
    if not 240 <= time_s < 420:
        return {}
    known = {"index", "uuid", "name"}
    names = [name for name in DeviceSample.__slots__ if name not in known]
    fields: dict[str, Any] = dict.fromkeys(names)
    del gpu
    return {**fields, "is_lost": True}


def _hungry(time_s: float, gpu: DeviceSample) -> dict[str, Any]:
    """Kernels that wait for another GPU draw little, at full utilisation; then far too much."""
    if 400 <= time_s < 520:
        return {"power_w": 150.0 + int(time_s) % 5}
    if 700 <= time_s < 800:
        return {"power_w": 485.0, "gpu_frac": 0.2 if gpu.gpu_frac else 0.0}
    return {}


def _stalled(time_s: float, _: DeviceSample) -> dict[str, Any]:
    return {"gpu_frac": 0.15, "power_w": 110.0} if 400 <= time_s < 1000 else {}


def _ranks(fault: str) -> tuple[Program, ...]:
    return tuple(Program(fault, 4711 + rank, rank) for rank in range(4))


COURSES: Final = {
    "leak": Course((Program("leak"),)),
    "spike": Course((Program("spike"),)),
    "fragmentation": Course((Program("fragmentation"),)),
    "straggler": Course(_ranks("rank"), 8.0),
    "slow-rank": Course(_ranks("slow_rank"), 8.0),
    "idle-holder": Course((Program("notebook"),), 20.0),
    "storm": Course((Program("storm"),)),
    "forecast": Course((Program("forecast"),)),
    "out-of-memory": Course((Program("out_of_memory"),)),
    "killed": Course((Program("killed"),)),
    "scaler-skips": Course((Program("scaler"),)),
    "unpublished": Course((Program("killed"),), is_published=False),
    "two-jobs": Course(
        (Program("large_neighbour"), Program("small_neighbour", 4712, begin_s=200.0))
    ),
    "heat": Course((Program("healthy"),), script=_hot),
    "ecc": Course((Program("long"),), 8.0, script=_faulty),
    "lost": Course((Program("healthy"),), script=_lost),
    "power": Course((Program("long"),), 8.0, script=_hungry),
    "load-falls": Course((Program("long"),), 8.0, script=_stalled),
    "healthy-day": Course((Program("day"),), 120.0),
    "healthy-full-cache": Course((Program("full_cache"),)),
    "healthy-plateau": Course((Program("plateau"),)),
    "healthy-variable": Course((Program("variable"),)),
    "healthy-validation": Course((Program("validation"),)),
}


def make_course(course: Course, python: Path, kept: Path | None = None) -> list[Sample]:
    """Runs the programs of a course, and samples them.

    Args:
        course: which.
        python: of an environment with torch.
        kept: where logs are kept and found again; None: nowhere.
    """
    with tempfile.TemporaryDirectory() as directory:
        logs = [_run(each, python, kept or Path(directory)) for each in course.programs]
    taken = take_samples(logs, course.interval_s, is_published=course.is_published)
    return list(taken if course.script is None else _scripted(taken, course.script))


def _scripted(
    samples: Iterable[Sample], script: Callable[[float, DeviceSample], dict[str, Any]]
) -> Iterator[Sample]:
    for sample in samples:
        first, *rest = sample.devices
        changes = script(sample.time_s - _START_S, first)
        yield replace(sample, devices=(replace(first, **changes), *rest))


def _run(program: Program, python: Path, directory: Path) -> Log:
    log = (directory / f"{program.fault}-{program.pid}.log").absolute()
    part = log.with_suffix(".part")
    if log.exists():
        return load_log(log)
    ranks = {} if program.rank is None else {
        "COURSE_RANK": str(program.rank), "COURSE_WORLD": "4",
    }  # fmt: skip
    environment = {
        **os.environ, **ranks, "PYTHONPATH": str(ROOT / "src"), "COURSE_LOG": str(part),
        "COURSE_PID": str(program.pid), "COURSE_BEGIN": str(program.begin_s),
        "TMPDIR": str(directory),
    }  # fmt: skip
    ullage = str(Path(sys.executable).with_name("ullage"))
    command = [
        ullage, "run", "--gpu", program.gpu, "--python", str(python),
        "--snapshot", str(directory / f"{program.pid}.pickle"), "--",
        str(_PROGRAM), program.fault,
    ]  # fmt: skip
    done = subprocess.run(
        command, env=environment, cwd=directory, capture_output=True, text=True, check=False
    )
    if not part.exists():
        raise RuntimeError(f"{program.fault} ended with {done.returncode}: {done.stderr[-2000:]}")
    part.replace(log)
    return load_log(log)


def main() -> None:
    """Writes the courses that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--logs", type=Path, help="directory of logs, kept and found again")
    parser.add_argument("names", nargs="*", choices=[[], *COURSES], metavar="NAME")
    options = parser.parse_args()
    logs = options.logs and options.logs.absolute()
    DIRECTORY.mkdir(exist_ok=True)
    for name in options.names or COURSES:
        samples = make_course(COURSES[name], options.python.absolute(), logs)
        text = "".join(f"{sample_to_line(sample)}\n" for sample in samples)
        content = lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)
        (DIRECTORY / f"{name}.jsonl.xz").write_bytes(content)
        print(f"{name}: {len(samples)} samples, {len(content)} bytes", flush=True)


if __name__ == "__main__":
    main()
