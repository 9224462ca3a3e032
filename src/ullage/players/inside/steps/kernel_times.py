"""The times of the kernels of one step, by PyTorch's profiler: what `ullage record --kernels` adds.

    kernels = KernelTimes(torch)
    kernels.end_step(2)             # profiles the step that begins here
    kernels.end_step(3)
    kernels.rows                    # of `ullage.log.kernel_times`

The profiler is on in the third step alone: in the first, states are made and libraries choose their
kernels. It slows the host in that step, not the kernels.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ullage.players.inside.part import Part
from ullage.players.inside.patches import Patches, around

_AFTER = 2  # steps
# Operators that are one matrix product each, and which argument its first factor is.
_PRODUCTS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}
_PRECISIONS = {"c10::BFloat16": "bfloat16", "c10::Half": "float16", "double": "float64"}
_SECONDS = 1e-6  # of the unit of a trace
_IN_USE = "no times of kernels: the program uses PyTorch's profiler itself"


class KernelTimes(Part):
    """Profiles one step of this process; what fails is a remark, and the program goes on."""

    def __init__(self, torch: Any) -> None:
        self.rows: list[list[Any]] = []
        self.remark: str | None = "no times of kernels: the program made fewer than three steps"
        self._torch = torch
        self._profiler: Any = None
        self._patches = Patches()

    def end_step(self, count: int) -> None:
        """This many steps have ended."""
        try:
            if self._profiler is not None:
                self._end()
            elif count == _AFTER:
                self._begin()
        except Exception as error:  # another profiler is on, or this torch has none for the GPU
            self._profiler = None
            self.remark = f"no times of kernels: {type(error).__name__}: {error}"

    def close(self) -> None:
        """The recording ends: a profile that is open ends, too, else the process would with it."""
        if (profiler := self._take_out()) is not None:
            profiler.stop()

    def fields(self) -> dict[str, Any]:
        """The rows, as a part of what was measured."""
        return {"measured": {"kernels": self.rows}}

    def remarks(self) -> list[str]:
        """The reason why there are no times."""
        return [] if self.remark is None else [self.remark]

    def _begin(self) -> None:
        # Else kernels of the step before would run in this one.
        self._torch.cuda.synchronize()
        from torch.profiler import ProfilerActivity, profile

        of_program = self._torch.autograd.profiler.profile
        if self._torch._C._autograd._profiler_enabled():
            self.remark = _IN_USE
            return
        activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        self._profiler = profile(activities=activities, record_shapes=True)
        self._profiler.start()
        # Two profiles at once end the process: the program's own comes first.
        self._patches.replace(of_program, "__init__", around(of_program.__init__, self._give_way))

    def _give_way(self, *_: Any, **__: Any) -> None:
        self.remark = _IN_USE
        self.close()

    def _take_out(self) -> Any:
        """The profiler that is on, which is this class's no more; None: there is none."""
        profiler, self._profiler = self._profiler, None
        self._patches.undo()
        return profiler

    def _end(self) -> None:
        self._torch.cuda.synchronize()
        profiler = self._take_out()
        profiler.stop()
        with tempfile.TemporaryDirectory(prefix="ullage-") as directory:
            path = Path(directory, "trace.json")
            profiler.export_chrome_trace(str(path))
            events = json.loads(path.read_bytes())["traceEvents"]
        is_tf32 = self._torch.backends.cuda.matmul.allow_tf32
        self.rows = sum_kernels(events, "tf32" if is_tf32 else "fp32")
        self.remark = None if self.rows else "no times of kernels: the profiler saw none"


def sum_kernels(events: Iterable[Mapping[str, Any]], float32: str) -> list[list[Any]]:
    """Rows of equal kernels in the events of a trace: [name, precision, sizes, number, seconds].

    A matrix product has the name of its operator, the precision of its factors and the sizes m, n,
    k and batch, and is all kernels of the operator together. Any other kernel has its own name, no
    precision, and the sizes of its grid and the threads of a block.

    Args:
        float32: how products of float32 are computed: "fp32" or "tf32".
    """
    events = list(events)
    operators = {_number(event): event for event in events if event.get("cat") == "cpu_op"}
    sums: dict[tuple[Any, ...], list[float]] = {}
    counted: set[object] = set()
    for event in events:
        if event.get("cat") != "kernel":
            continue
        number = _number(event)
        key = _product(operators.get(number), float32)
        is_more_of_it = key is not None and number in counted
        if key is None:
            arguments = event["args"]
            key = event["name"], "", (*arguments["grid"], math.prod(arguments["block"]))
        counted.add(number)
        count_and_seconds = sums.setdefault(key, [0, 0.0])
        count_and_seconds[0] += not is_more_of_it
        count_and_seconds[1] += event["dur"] * _SECONDS
    return [[name, how, [*sizes], *of] for (name, how, sizes), of in sums.items()]


def _number(event: Mapping[str, Any]) -> object:
    """The number that an operator and its kernels share."""
    return event.get("args", {}).get("External id")


def _product(
    operator: Mapping[str, Any] | None, float32: str
) -> tuple[str, str, tuple[int, ...]] | None:
    """The name, precision and sizes of a matrix product; None: the operator is another."""
    if operator is None or operator["name"] not in _PRODUCTS:
        return None
    place = _PRODUCTS[operator["name"]]
    arguments = operator["args"]
    left, right = arguments["Input Dims"][place : place + 2]
    number = arguments["Input type"][place]
    precision = float32 if number == "float" else _PRECISIONS.get(number)
    if precision is None:
        return None
    *batch, m, k = left
    return operator["name"], precision, (m, right[-1], k, math.prod(batch))
