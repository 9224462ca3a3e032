"""Builders: a record from a line of text, and the program around it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ullage.explain.compare.sweep import Point, Setting, SweepReport, explain_sweep, parse_number
from ullage.explain.program import Program
from ullage.explain.run import explain_run
from ullage.facts.gpus.catalog import Gpu, find_gpu
from ullage.log.model import Record
from ullage.log.reader import parse_record

_MARKS = {
    "F": ("forward_begin", {"grad": True}),
    "N": ("forward_begin", {"grad": False}),
    "f": ("forward_end", None),
    "B": ("backward_begin", None),
    "b": ("backward_end", None),
    "O": ("optimizer_begin", None),
    "o": ("optimizer_end", None),
}


class _Device:
    """Live blocks of one device, placed first-fit, so that addresses come back."""

    def __init__(self) -> None:
        self.blocks: list[tuple[int, int]] = []
        self.last = 0
        self.allocated = self.reserved = self.peak = 0

    def allocate(self, size: int) -> int:
        address = 1 << 30
        for start, length in sorted(self.blocks):
            if start - address >= size:
                break
            address = max(address, start + length)
        self.blocks.append((address, size))
        self.last = address
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        self.reserved = max(self.reserved, self.allocated)
        return address

    def free(self, size: int) -> int:
        block = next(block for block in self.blocks if block[1] == size)
        self.blocks.remove(block)
        self.allocated -= size
        return block[0]


def build_fields(script: str, **changes: Any) -> dict[str, Any]:
    """The dict that a process writes, from words such as "+4 =parameter F +2 f B -2 b S".

    +4 a block of 4 bytes comes, -4 the oldest of 4 bytes goes, =CATEGORY claims the newest block,
    =CATEGORY:NAME with a name, >PATH is in a module from now on, < in none, w says the newest was
    scratch memory, x that NCCL sent or received it, !8 an allocation of 8 fails; F f N (no
    gradients) B b O o are marks, S ends a step, @1 goes on on device 1; R autograd takes notes from
    now on, r no longer; u7 the newest block of 7 bytes is used; f:4x8 a forward ends that was
    called with a tensor of that shape; f!4x8 one that raised; N:1 one of root module 1
    begins.
    """
    devices: dict[int, _Device] = {}
    index, num_steps = 0, 0
    rows: list[tuple[int, ...]] = []
    marks, claims, workspaces, ooms = [], [], [], []
    modules, scopes, scope = list[str](), list[int](), -1
    with_graph = 0
    births, last_uses = dict[str, int](), dict[int, int]()
    for word in script.split():
        device = devices.setdefault(index, _Device())
        kind, text = word[0], word[1:]
        scopes += [scope] * (kind in "+-!")
        if kind == "+":
            births[text] = len(rows)
            rows.append((device.allocate(int(text)), int(text), device.reserved, index, with_graph))
        elif kind == "-":
            rows.append((device.free(int(text)), -int(text), device.reserved, index, with_graph))
        elif kind == "!":
            ooms.append({"position": len(rows), "device": index, "requested_bytes": int(text),
                         "message": f"tried {text}", "where": "train.py:3 in main"})  # fmt: skip
            rows.append((0, int(text), device.reserved, index, 1))
        elif kind == "=":
            category, _, name = text.partition(":")
            claims.append([len(rows), index, device.last, category, name])
        elif kind == ">":
            modules += [text] * (text not in modules)
            scope = modules.index(text)
        elif kind == "<":
            scope = -1
        elif kind == "u":
            last_uses[births[text]] = len(rows)
        elif kind in "Rr":
            with_graph = 2 if kind == "R" else 0
        elif kind in "wx":
            library = "NCCL" if kind == "x" else "cuBLAS"
            workspaces.append([len(rows), index, device.last, 1, library])
        elif kind == "S":
            marks.append([len(rows), "step", num_steps])
            num_steps += 1
        elif kind == "@":
            index = int(text)
        elif kind == "f" and text:
            shape = [int(size) for size in text[1:].split("x")]
            about = {"inputs": [shape], "failed": text[0] == "!"}
            marks.append([len(rows), "forward_end", about])
        elif kind in "FN" and text:
            about = {**_MARKS[kind][1], "module": int(text.removeprefix(":"))}
            marks.append([len(rows), "forward_begin", about])
        else:
            marks.append([len(rows), *_MARKS[kind]])
    columns = np.array(rows, dtype=np.int64).reshape(-1, 5)
    fields = {
        "schema": "ullage.record/1", "ullage": "0.1.0", "torch": "2.15.0+cu132", "cuda": "13.2",
        "python": "3.11.7", "argv": ["train.py"], "pid": 4711, "rank": None,
        "started_s": 1.0, "ended_s": 3.0,
        "exit": {"kind": "returned", "exception": None, "message": None, "where": None, "code": 0},
        "devices": [_totals(i, device, len(ooms)) for i, device in sorted(devices.items())],
        "first_position": 0,
        "events": {
            "address": columns[:, 0].astype("<i8").tobytes(),
            "bytes": columns[:, 1].astype("<i8").tobytes(),
            "reserved": columns[:, 2].astype("<i8").tobytes(),
            "device": columns[:, 3].astype("u1").tobytes(),
            "kind": columns[:, 4].astype("u1").tobytes(),
            "scope": np.array(scopes, dtype="<i4").tobytes(),
        },
        "modules": modules,
        "last_uses": np.array(
            [last_uses.get(row, 0) for row in range(len(rows))], dtype="<u4"
        ).tobytes(),
        "marks": marks, "claims": claims, "workspaces": workspaces, "basis": [], "scratch": [],
        "ooms": ooms, "host_peak_bytes": 1000, "pinned_peak_bytes": 0, "warnings": [],
    }  # fmt: skip
    return {**fields, **changes}


def _totals(index: int, device: _Device, num_ooms: int) -> dict[str, Any]:
    return {
        "index": index, "name": "NVIDIA Test", "total_bytes": 1000, "context_bytes": 100,
        "non_torch_bytes": 0, "peak_requested_bytes": device.peak,
        "peak_allocated_bytes": device.peak, "peak_reserved_bytes": device.reserved,
        "num_allocs": 1, "num_segments": 1, "num_ooms": num_ooms, "num_alloc_retries": 0,
    }  # fmt: skip


@pytest.fixture(scope="session")
def make_fields() -> Callable[..., dict[str, Any]]:
    """`build_fields`: what a process writes, as a dict."""
    return build_fields


@pytest.fixture(scope="session")
def make_record() -> Callable[..., Record]:
    """A record from a line of text (see `build_fields`)."""
    return lambda script, **changes: parse_record(build_fields(script, **changes))


@pytest.fixture(scope="session")
def small_gpu() -> Gpu:
    """A GPU of 1000 bytes, of which the driver's context takes 80 to 120."""
    return replace(
        find_gpu("h100-80gb"),
        slug="small", name="NVIDIA Test", total_bytes=1000, total_low_bytes=1000,
        total_high_bytes=1000, is_total_exact=True,
        context_low_bytes=80, context_bytes=100, context_high_bytes=120,
    )  # fmt: skip


@pytest.fixture(scope="session")
def program() -> Program:
    """A program of process 4711 that ended well."""
    return Program(argv=("train.py", "--batch-size", "16"), pid=4711, exit_code=0, wall_s=2.5)


@pytest.fixture(scope="session")
def sweep_of(
    make_record: Callable[..., Record], program: Program, small_gpu: Gpu
) -> Callable[..., SweepReport]:
    """`sweep_of({"batch": ("1", "2")}, peak)`: a run for each combination and GPU of 1000 bytes;
    peak(values) is what it allocates, or the exit of one that failed.
    """

    def make(
        variables: dict[str, Sequence[str]],
        peak: Callable[..., int | dict[str, object]],
        *,
        gpus: Sequence[Gpu] = (small_gpu,),
        is_unlimited: bool = False,
    ) -> SweepReport:
        grid: list[tuple[tuple[str, str], ...]] = [()]
        for name, values in variables.items():
            grid = [(*one, (name, value)) for one in grid for value in values]
        points = []
        for gpu in gpus:
            for setting in grid:
                found = peak(*(parse_number(value) or 0.0 for _, value in setting))
                is_number = isinstance(found, int)
                record = (
                    make_record(f"+{found} =parameter")
                    if is_number
                    else make_record("+7 !9", exit=found)
                )
                report = explain_run(
                    [(record, None)],
                    program=replace(program, exit_code=0 if is_number else 1),
                    torch="2.15.0", gpu=gpu, is_unlimited=is_unlimited,
                )  # fmt: skip
                points.append(Point(Setting(setting, gpu), report))
        return explain_sweep(
            points,
            template=("train.py", "{batch}"),
            variables=tuple((name, tuple(values)) for name, values in variables.items()),
            gpus=tuple(gpus),
            fresh_because="",
            wall_s=1.0,
            was_interrupted=False,
        )

    return make


@pytest.fixture
def no_color(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A terminal without colour."""
    monkeypatch.setenv("NO_COLOR", "1")
    yield


@pytest.fixture
def growth_of_time() -> Callable[..., float]:
    """How many times as long a task takes when it is `factor` times as large.

    Of its own processor time, and the fastest of several: what else the machine does only adds.
    """

    def measure(prepare: Callable[[int], Callable[[], object]], num: int, factor: int) -> float:
        fastest = []
        for size in (num, factor * num):
            task, seconds = prepare(size), []
            for _ in range(5):
                started = time.process_time()
                task()
                seconds.append(time.process_time() - started)
            fastest.append(min(seconds))
        return fastest[1] / fastest[0]

    return measure
