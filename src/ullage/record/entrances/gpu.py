"""The record of a process on a real GPU, in the fields of every other record."""

from __future__ import annotations

import ctypes
import os
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ullage.protocol.variables import PHANTOM

if TYPE_CHECKING:
    from ullage.record.allocator.event_hook import EventHook, Ring
    from ullage.record.allocator.peaks import Peaks
    from ullage.record.steps.batch_waits import BatchWaits
    from ullage.record.steps.step_peaks import StepPeaks
    from ullage.trace.record_schema import (
        DeviceFields,
        EventColumns,
        MeasuredFields,
        PressureFields,
    )

_NO_EVENTS: EventColumns = {
    "address": b"", "bytes": b"", "reserved": b"", "scope": b"", "device": b"", "kind": b"",
}  # fmt: skip
_DRIVER_CHARS = 96


def event_fields(ring: Ring | None) -> dict[str, Any]:
    """The allocator's events; None: none were noted."""
    if ring is None:
        return {"first_position": 0, "events": _NO_EVENTS}
    return {"first_position": ring.first_position, "events": ring.columns}


def usage_fields(
    hook: EventHook | None, ring: Ring | None, batch_waits: BatchWaits, num_workspaces: int
) -> dict[str, Any]:
    """What libraries were handed, what went between host and device, and the waits for batches; in
    the mode that notes no events nothing of the latter two.
    """
    if hook is None or ring is None:
        return {"workspaces": []}
    copies, num_lost = hook.copies(ring)
    pinned, highest_bytes = hook.pinned(ring)
    return {
        "workspaces": hook.workspaces(ring, num_workspaces),
        "copies": copies,
        "num_lost_copies": num_lost,
        "pinned": pinned,
        "pinned_peak_bytes": highest_bytes,
        "batch_waits": batch_waits.document(),
    }


def device_fields(torch: ModuleType, peaks: Peaks, outside: dict[int, int]) -> list[DeviceFields]:
    """The totals of the devices; `outside` is what was in use of each beside PyTorch's memory."""
    devices: list[DeviceFields] = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices.append(
            {
                "index": index,
                "name": properties.name,
                "total_bytes": properties.total_memory,
                "context_bytes": outside.get(index, 0),
                "non_torch_bytes": 0,
                "outside": [],
                "peak_of_all_bytes": 0,
                "place": index,
                **peaks.of_device(index),
            }
        )
    return devices


def forget_annotations(history: dict[str, Any]) -> None:
    """Takes the annotations out of torch's snapshot that are older than its events: torch keeps as
    many of them as of events, and each step makes some.
    """
    times = [trace[0].get("time_us", 0) for trace in history["device_traces"] if trace]
    rows = history.get("external_annotations")
    if times and rows:
        first = min(times)
        history["external_annotations"] = [
            row for row in rows if row.get("time_us", first) >= first
        ]


def measured_fields(
    mode: str,
    num_lost: int,
    step_peaks: StepPeaks,
    num_others: list[int | None],
    pressure: PressureFields,
    *,
    kernels: list[list[Any]] | None,
) -> MeasuredFields:
    """What says that this was measured, and how."""
    fields: MeasuredFields = {
        "mode": mode,
        "driver": driver_version(),
        "num_lost": num_lost,
        "step_peaks": [list(row) for row in step_peaks.rows()],
        "num_others": num_others,
        "is_phantom": PHANTOM in os.environ,
        "pressure": pressure,
    }
    if kernels is not None:
        fields["kernels"] = kernels
    return fields


def remarks(num_lost: int, remark: str | None) -> list[str]:
    """What a reader is to know of a record: what is not in it."""
    lines = []
    if num_lost:
        lines.append(
            f"the oldest {num_lost:,} allocator events are not in the record, as its ring was "
            "full; a larger --ring keeps more"
        )
    return lines if remark is None else [*lines, remark]


def outside_bytes(torch: ModuleType, device: int) -> int:
    """What is in use of a device now beside PyTorch's memory: the driver's context, other
    libraries, and other processes.
    """
    free, total = torch.cuda.mem_get_info(device)
    reserved: int = torch._C._cuda_memoryStats(device)["reserved_bytes"]["all"]["current"]
    return max(0, int(total) - int(free) - reserved)


def driver_version() -> str | None:
    """The version of NVIDIA's driver, as NVML has it; None: there is no NVML."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        text = ctypes.create_string_buffer(_DRIVER_CHARS)
        if nvml.nvmlInit_v2() or nvml.nvmlSystemGetDriverVersion(text, _DRIVER_CHARS):
            return None
    except (OSError, AttributeError):
        return None
    return text.value.decode(errors="replace") or None
