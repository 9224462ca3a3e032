"""What trackers are told of the steps since they were last told: the highest peaks, and the state
of the allocator now.

    window = Window()
    window.add(allocated_bytes, reserved_bytes, seconds)
    window.take(torch).values()     # {"allocated_peak_bytes": 2.1e9, ..., "step_seconds": 0.4}
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

PEAKS = ("allocated_peak", "reserved_peak")


@dataclass(frozen=True, slots=True)
class StepFigures:
    """The figures of some steps in a row, on the device that holds the most memory.

    Attributes:
        step: the number of the last one; the recording's first is 1.
        allocated_peak_bytes, reserved_peak_bytes: the highest of these steps.
        fragmented_bytes: free pieces of segments that are partly in use, now.
        headroom_bytes: the distance of the allocated peak to the limit, which is what the allocator
            has reserved and what is free on the GPU.
        step_seconds: the mean of these steps.
        num_alloc_retries, num_ooms: since the process began, or the program reset them.
    """

    step: int
    allocated_peak_bytes: int
    reserved_peak_bytes: int
    fragmented_bytes: int
    headroom_bytes: int
    step_seconds: float
    num_alloc_retries: int
    num_ooms: int

    def values(self, unit: str = "bytes", bytes_per_unit: float = 1.0) -> dict[str, float]:
        """The figures by name; those of memory end in the unit."""
        return {
            f"allocated_peak_{unit}": self.allocated_peak_bytes / bytes_per_unit,
            f"reserved_peak_{unit}": self.reserved_peak_bytes / bytes_per_unit,
            f"fragmented_{unit}": self.fragmented_bytes / bytes_per_unit,
            f"headroom_{unit}": self.headroom_bytes / bytes_per_unit,
            "step_seconds": self.step_seconds,
            "alloc_retries": float(self.num_alloc_retries),
            "ooms": float(self.num_ooms),
        }


class Window:
    """Collects steps until their figures are taken."""

    def __init__(self) -> None:
        self.num_steps = 0
        self._clear()

    def _clear(self) -> None:
        self._allocated_bytes = self._reserved_bytes = self._num_new = 0
        self._seconds = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether no step has ended since figures were taken."""
        return not self._num_new

    def add(self, allocated_bytes: int, reserved_bytes: int, seconds: float) -> None:
        """One more step has ended, with these peaks."""
        self.num_steps += 1
        self._num_new += 1
        self._allocated_bytes = max(self._allocated_bytes, allocated_bytes)
        self._reserved_bytes = max(self._reserved_bytes, reserved_bytes)
        self._seconds += seconds

    def take(self, torch: ModuleType) -> StepFigures:
        """The figures of the steps since this was last called, of which there is one at least."""
        stats, free_bytes = _read_fullest(torch)
        reserved_bytes = stats["reserved_bytes"]["all"]["current"]
        figures = StepFigures(
            step=self.num_steps,
            allocated_peak_bytes=self._allocated_bytes,
            reserved_peak_bytes=self._reserved_bytes,
            fragmented_bytes=stats["inactive_split_bytes"]["all"]["current"],
            headroom_bytes=reserved_bytes + free_bytes - self._allocated_bytes,
            step_seconds=self._seconds / self._num_new,
            num_alloc_retries=stats["num_alloc_retries"],
            num_ooms=stats["num_ooms"],
        )
        self._clear()
        return figures


def _read_fullest(torch: Any) -> tuple[dict[str, Any], int]:
    """The allocator's counters on the device where it holds the most, and what is free there."""
    counters = [torch._C._cuda_memoryStats(index) for index in range(torch.cuda.device_count())]
    levels = [stats["reserved_bytes"]["all"]["current"] for stats in counters]
    fullest = levels.index(max(levels))
    free_bytes, _ = torch.cuda.mem_get_info(fullest)
    return counters[fullest], int(free_bytes)
