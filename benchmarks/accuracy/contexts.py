"""GPU memory outside PyTorch's allocator, compared with nvidia-smi in public training logs.

python -m benchmarks.accuracy.contexts

Writes docs/results/accuracy.md. The readings are in truth/contexts.csv: device memory by GPU,
driver, CUDA, torch and number of ranks, when the training of a small GPT model began, with NCCL
initialised or not. The phantom's NCCL is called as C would, once for each kind of machine.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.provenance import made_by
from benchmarks.results import publish
from ullage.facts.gpus import find_gpu
from ullage.ground.native import libraries
from ullage.ground.protocol.variables import DEVICE, LIBRARIES, PHANTOM
from ullage.ground.units import MIB
from ullage.players.phantom.device import choose_device

READINGS: Final = Path(__file__).parent / "truth" / "contexts.csv"

GPUS: Final = {
    "NVIDIA H100 80GB HBM3": "h100-80gb",
    "NVIDIA H200": "h200",
    "NVIDIA GeForce RTX 5090": "rtx-5090",
}
# What the driver itself was seen to hold on GPUs without a process: the readings below this.
DRIVER_MIB: Final = 60
# The first segments of PyTorch's allocator, which a reading of the process has in it.
SEGMENT_MIB: Final = 2
# The version of NCCL that a build of torch asks for, as ncclGetVersion has it. Nightly builds of
# torch 2.7 asked for 2.21.5 until February 2025.
NCCL: Final = (
    ("2.4", 22005),
    ("2.5", 22105),
    ("2.6", 22105),
    ("2.7.0.dev202501", 22105),
    ("2.7.0.dev202502", 22105),
    ("2.7", 22602),
    ("2.8", 22703),
    ("2.9", 22705),
    ("2.10", 22705),
    ("2.11", 22809),
)
INTRODUCTION: Final = (
    "`nvidia-smi` printed these figures in 1,188 public logs of training with PyTorch. They were "
    "used to check the intervals; no end of an interval was fitted to them. An interval has the "
    "driver's context (`facts/gpus/catalog.toml`), NCCL's kernels (`facts/gpus/nccl.py`) and the "
    "buffers of "
    "one communicator (`players/phantom/csrc/answers/nccl_memory.c`). The logs do not say how many "
    "communicators a program made. A reading of a whole GPU does not say what is on it: it counts "
    "as what it fits, and as one with the contexts of the other ranks only where the machine's "
    "other GPUs had less. Readings of GPUs without a process (below 60 MiB) are left out."
)
OTHERS: Final = "process, and contexts of the other ranks"
# Run in a process of its own: the library reads its device once.
_PROGRAM: Final = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]
communicator, recv = ctypes.c_void_p(), ctypes.c_void_p()
assert not library.cudaMalloc(ctypes.byref(recv), ctypes.c_size_t(512))
assert not library.ncclCommInitRank(ctypes.byref(communicator), int(sys.argv[2]), Id(), 0)
assert not library.ncclAllReduce(recv, recv, ctypes.c_size_t(4), 7, 0, communicator, None)
library.ullage_outside.restype = ctypes.c_char_p
row, rows = (ctypes.c_uint64 * 4)(), []
while library.ullage_outside(ctypes.c_uint64(len(rows)), row):
    rows.append([row[2], row[3]])
print(json.dumps([sum(ends) for ends in zip(*rows)]))
"""


@dataclass(frozen=True)
class Interval:
    """MiB, both ends included."""

    low: float
    high: float

    def __contains__(self, mib: int) -> bool:
        return self.low <= mib <= self.high

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)


@dataclass(frozen=True)
class Machine:
    """A kind of machine: the GPU, the version of NCCL and how many GPUs are in it."""

    gpu: str
    nccl: int
    num_ranks: int


@dataclass(frozen=True)
class Reading:
    """What nvidia-smi printed, and how often.

    Attributes:
        machine: where.
        mib: the memory in use.
        count: how often.
        is_process: it is that of the process itself; otherwise of the whole GPU.
        is_of_one_rank: the machine's other GPUs had less, as where this one holds the contexts of
            all ranks.
    """

    machine: Machine
    mib: int
    count: int
    is_process: bool
    is_of_one_rank: bool


def read(path: Path = READINGS) -> list[Reading]:
    """The readings of GPUs that a process was on."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    return [
        reading
        for gpu, _, _, torch, ranks, _, own, _ in rows
        for reading in _readings(_machine(gpu, torch, int(ranks)), own)
    ]


def _readings(machine: Machine, text: str) -> Iterator[Reading]:
    """Those of one line: "1506x8 -1520x2", below 0 where only the GPU's use was known."""
    parsed = [(int(mib), int(count)) for mib, count in re.findall(r"(-?\d+)x(\d+)", text)]
    total = sum(count for _, count in parsed)
    for mib, count in parsed:
        as_high = sum(other_count for other, other_count in parsed if abs(other) >= abs(mib))
        if abs(mib) >= DRIVER_MIB:
            is_of_one = as_high * machine.num_ranks <= total
            yield Reading(machine, abs(mib), count, mib > 0, is_of_one)


def _machine(gpu: str, torch: str, num_ranks: int) -> Machine:
    number = next(nccl for prefix, nccl in NCCL if torch.startswith((prefix + ".", prefix)))
    return Machine(GPUS[gpu], number, num_ranks)


def context_of(machine: Machine) -> Interval:
    """What a process has on the GPU without NCCL."""
    gpu = find_gpu(machine.gpu)
    ends = Interval(gpu.context_low_bytes / MIB, gpu.context_high_bytes / MIB)
    return ends + Interval(0, SEGMENT_MIB)


def nccl_of(machine: Machine) -> Interval:
    """What one communicator takes beside it: the phantom's answer."""
    device = choose_device(machine.gpu).environment_text()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("NCCL_")},
        PHANTOM: "1",
        DEVICE: device,
        LIBRARIES: f"nccl={machine.nccl}",
        "LOCAL_WORLD_SIZE": str(machine.num_ranks),
    }
    command = [sys.executable, "-c", _PROGRAM, str(libraries.PHANTOM), str(machine.num_ranks)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    low, high = json.loads(done.stdout)
    return Interval(low / MIB, high / MIB)


def intervals_of(machine: Machine) -> dict[str, Interval]:
    """By what is on the GPU."""
    context = context_of(machine)
    own = context + nccl_of(machine)
    others = machine.num_ranks - 1
    held = Interval(others * context.low, others * context.high)
    return {
        "process with NCCL": own,
        "context alone": context,
        OTHERS: own + held,
    }


@dataclass(frozen=True)
class Row:
    """One line of the page: the readings of one kind of machine that are the same thing."""

    machine: Machine
    what: str
    interval: Interval
    readings: tuple[Reading, ...]

    @property
    def count(self) -> int:
        """How many readings there are."""
        return sum(reading.count for reading in self.readings)

    @property
    def num_inside(self) -> int:
        """How many of them lie in the interval."""
        return sum(r.count for r in self.readings if r.mib in self.interval)


def score(readings: Iterable[Reading]) -> list[Row]:
    """The readings beside the intervals. Of a whole GPU it is not said what was on it: such a
    reading is taken for what it fits, if it fits anything, and for a process with NCCL if not. The
    contexts of the other ranks are on one GPU of a machine at most.
    """
    groups: dict[tuple[Machine, str], list[Reading]] = {}
    intervals: dict[Machine, dict[str, Interval]] = {}
    for reading in readings:
        if reading.machine not in intervals:
            intervals[reading.machine] = intervals_of(reading.machine)
        own = next(iter(intervals[reading.machine]))
        fitting = (
            what
            for what, ends in intervals[reading.machine].items()
            if reading.mib in ends and (what != OTHERS or reading.is_of_one_rank)
        )
        what = own if reading.is_process else next(fitting, own)
        groups.setdefault((reading.machine, what), []).append(reading)
    return [
        Row(machine, what, intervals[machine][what], tuple(group))
        for (machine, what), group in groups.items()
    ]


def inside_frac(rows: Iterable[Row]) -> float:
    """The part of the readings that lies in its interval."""
    listed = list(rows)
    return sum(row.num_inside for row in listed) / sum(row.count for row in listed)


def _lines(rows: list[Row]) -> Iterator[str]:
    yield "# Memory outside the allocator, compared with public training logs"
    yield ""
    yield made_by("benchmarks.accuracy.contexts")
    yield ""
    yield INTRODUCTION
    yield ""
    yield f"**{inside_frac(rows):.1%} of {sum(r.count for r in rows):,} readings are inside.**"
    yield ""
    yield "| GPU | ranks | NCCL | what | MiB read | interval, MiB | readings | inside |"
    yield "|---|---:|---|---|---|---|---:|---:|"
    for row in sorted(
        rows, key=lambda r: (r.machine.gpu, r.machine.num_ranks, r.machine.nccl, r.what)
    ):
        mib = [reading.mib for reading in row.readings]
        read_text = f"{min(mib):,}" if min(mib) == max(mib) else f"{min(mib):,} to {max(mib):,}"
        nccl = row.machine.nccl
        low, high = row.interval.low, row.interval.high
        yield (
            f"| {row.machine.gpu} | {row.machine.num_ranks} "
            f"| {nccl // 10000}.{nccl // 100 % 100}.{nccl % 100} | {row.what} | {read_text} "
            f"| {low:,.0f} to {high:,.0f} | {row.count:,} | {row.num_inside:,} |"
        )


def main() -> None:
    """Write the page."""
    publish("contexts", "".join(f"{line}\n" for line in _lines(score(read()))))


if __name__ == "__main__":
    main()
