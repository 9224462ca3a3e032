"""The further parts of a record on a real GPU: its mode, the driver, the peak of each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from ullage.ground.protocol.plain import From
from ullage.log import field_checks
from ullage.log.field_checks import Position
from ullage.log.kernel_times import KernelTime
from ullage.log.pressure import MeasuredPressure, parse_pressure


class StepsPeak(NamedTuple):
    """Some steps in a row: the first, how many, their highest bytes, and their seconds together."""

    first: int
    num_steps: int
    allocated_bytes: int
    reserved_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Measured:
    """How a record was measured.

    Attributes:
        mode: how much was recorded: "full", "events" or "counters".
        driver: NVIDIA's version; None: NVML did not tell.
        num_lost: the allocator's events that left the ring.
        step_peaks: of all steps, oldest first, by the process's fullest device.
        num_others: of each device, how many processes used it beside this one when CUDA started;
            None: NVML did not tell. Empty in a record of an earlier version.
        is_phantom: whether the GPU was the phantom.
        pressure: on the allocator, beside times; None in a record of an earlier version.
        kernels: of the third step; empty: they were not asked for, or there are none.
    """

    mode: str
    driver: str | None
    num_lost: int = 0
    step_peaks: tuple[StepsPeak, ...] = ()
    num_others: tuple[Position | None, ...] = ()
    is_phantom: bool = False
    pressure: Annotated[MeasuredPressure | None, From(object), parse_pressure] = None
    kernels: tuple[KernelTime, ...] = ()

    @property
    def num_steps(self) -> int:
        """The number of steps."""
        return sum(row.num_steps for row in self.step_peaks)


def parse_measured(fields: Mapping[str, Any]) -> Measured | None:
    """The field of a record; None: the phantom wrote it.

    Raises:
        SnapshotError: it is damaged.
    """
    if fields.get("measured") is None:
        return None
    return field_checks.read(Measured, fields["measured"], "measured")
