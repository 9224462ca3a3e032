"""The time of a step of a watched process, from its log of work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ullage.clock.interconnect import parse_interconnect
from ullage.clock.simulation import HostCosts
from ullage.trace.model import MarkKind

if TYPE_CHECKING:
    from ullage.clock.step import Batch, HostInterval
    from ullage.clock.step_time import StepTime
    from ullage.gpus import Gpu
    from ullage.trace.model import Record

# The host's time for an operator of PyTorch and its kernel's launch. Measured by PyTorch's
# developers, 2 to 10 us by operator and processor; 5 us are assumed. A graph's launch takes about
# 2 us and 2.5 us more, independent of the nodes' number as of CUDA 12.6.
# Source: NVIDIA, "Constant-Time Launch for Straight-Line CUDA Graphs", developer blog, 2024.
_LAUNCH_S: Final = (2e-6, 5e-6, 10e-6)
_GRAPH_S: Final = (2.5e-6, 5e-6, 10e-6)


def time_process(record: Record, gpu: Gpu, interconnect: str | None) -> StepTime | None:
    """The time of the last whole step; None where no work was logged, or no step was whole."""
    if record.work_log is None:
        return None
    from ullage.clock.costs import cost_of
    from ullage.clock.step import measure_step

    links = None if interconnect is None else parse_interconnect(interconnect)
    return measure_step(
        record.work_log,
        gpu,
        lambda work: cost_of(gpu, work, links),
        _host(gpu),
        modules=record.modules,
        batch=_batch(record),
        basis=_basis(record),
    )


def _host(gpu: Gpu) -> HostInterval:
    """What the host needs: as `ullage calibrate` measured it, or assumed."""
    from ullage.clock.step import HostInterval

    launches = _LAUNCH_S
    if gpu.measured is not None:
        launches = (gpu.measured.launch_s / 2, gpu.measured.launch_s, gpu.measured.launch_s * 2)
    costs = (HostCosts(*pair) for pair in zip(launches, _GRAPH_S, strict=True))
    return HostInterval(*costs)


def _basis(record: Record) -> Iterator[str]:
    yield (
        f"the host: {_LAUNCH_S[1] * 1e6:.0f} us for each operator ({_LAUNCH_S[0] * 1e6:.0f} to "
        f"{_LAUNCH_S[2] * 1e6:.0f}), assumed; the program's other time on the CPU, such as loading "
        "data, is not counted"
    )
    if any(len(group) > 1 for group in record.groups):
        yield "the other ranks: as far as this one whenever a collective begins"
    yield "kernels on several streams at once: each as fast as alone"


def _batch(record: Record) -> Batch:
    """What the forwards of the last step worked on, by the shape of their first tensor."""
    from ullage.clock.step import Batch

    samples = tokens = 0
    last: list[tuple[int, int]] = []
    for mark in record.marks:
        if mark.kind is MarkKind.FORWARD_END and mark.inputs:
            last.append((mark.inputs[0][0] if mark.inputs[0] else 0, mark.num_tokens or 0))
        elif mark.kind is MarkKind.STEP:
            samples, tokens = (
                (sum(column) for column in zip(*last, strict=True)) if last else (0, 0)
            )
            last = []
    return Batch(samples, tokens)
