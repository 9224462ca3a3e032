"""What NVML says of GPUs and processes, as metrics.

Where dcgm-exporter exports the same quantity, the metric has its name, unit and labels, so that
dashboards and rules for it go on working; all others begin with `ullage_`. What is not known is not
exported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ullage.watch.exporter.metric import Metric, Point, Type, gpu_labels, known_labels
from ullage.watch.sample import DeviceSample, ProcessSample, Sample
from ullage.watch.sharing import sharing_of

_MIB: Final = 2.0**-20
_PERCENT: Final = 100.0


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of `DeviceSample`, what it is exported as, and the factor to that unit."""

    name: str
    metric: Metric
    factor: float = 1.0


def _gauge(name: str, text: str) -> Metric:
    return Metric(name, Type.GAUGE, text)


def _count(name: str, text: str) -> Metric:
    return Metric(name, Type.UNKNOWN, text)


_FIELDS: Final = (
    _Field("total_bytes", _gauge("DCGM_FI_DEV_FB_TOTAL", "Memory in all (MiB)."), _MIB),
    _Field("used_bytes", _gauge("DCGM_FI_DEV_FB_USED", "Memory of all processes (MiB)."), _MIB),
    _Field("free_bytes", _gauge("DCGM_FI_DEV_FB_FREE", "Free memory (MiB)."), _MIB),
    _Field("reserved_bytes",
           _gauge("DCGM_FI_DEV_FB_RESERVED", "Memory that the driver keeps for itself (MiB)."),
           _MIB),
    _Field("gpu_frac",
           _gauge("DCGM_FI_DEV_GPU_UTIL", "Share of time in which any kernel ran (%)."), _PERCENT),
    _Field("memory_frac",
           _gauge("DCGM_FI_DEV_MEM_COPY_UTIL",
                  "Share of time in which memory was read or written (%)."), _PERCENT),
    _Field("sm_active_frac",
           _gauge("DCGM_FI_PROF_SM_ACTIVE",
                  "Share of the multiprocessors that were busy (0 to 1), by NVML's GPM.")),
    _Field("sm_occupancy_frac",
           _gauge("DCGM_FI_PROF_SM_OCCUPANCY",
                  "Share of the possible warps that were there (0 to 1), by NVML's GPM.")),
    _Field("dram_active_frac",
           _gauge("DCGM_FI_PROF_DRAM_ACTIVE",
                  "Share of the memory's bandwidth that was used (0 to 1), by NVML's GPM.")),
    _Field("temperature_c", _gauge("DCGM_FI_DEV_GPU_TEMP", "Temperature (degrees C).")),
    _Field("slowdown_c",
           _gauge("DCGM_FI_DEV_SLOWDOWN_TEMP",
                  "Temperature at which the GPU slows down (degrees C).")),
    _Field("shutdown_c",
           _gauge("DCGM_FI_DEV_SHUTDOWN_TEMP",
                  "Temperature at which the GPU switches off (degrees C).")),
    _Field("power_w", _gauge("DCGM_FI_DEV_POWER_USAGE", "Power (W).")),
    _Field("power_limit_w",
           _gauge("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "Limit of power that is in force (W).")),
    _Field("sm_clock_mhz", _gauge("DCGM_FI_DEV_SM_CLOCK", "Clock of the multiprocessors (MHz).")),
    _Field("sm_clock_max_mhz",
           _gauge("DCGM_FI_DEV_MAX_SM_CLOCK", "Highest clock of the multiprocessors (MHz).")),
    _Field("memory_clock_mhz", _gauge("DCGM_FI_DEV_MEM_CLOCK", "Clock of the memory (MHz).")),
    _Field("memory_clock_max_mhz",
           _gauge("DCGM_FI_DEV_MAX_MEM_CLOCK", "Highest clock of the memory (MHz).")),
    _Field("ecc_corrected",
           _count("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
                  "Corrected memory errors since the driver was loaded.")),
    _Field("ecc_uncorrected",
           _count("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
                  "Uncorrected memory errors since the driver was loaded.")),
    _Field("pcie_tx_bytes_per_s",
           _gauge("ullage_pcie_transmit_bytes_per_second", "PCIe traffic of the GPU, sent.")),
    _Field("pcie_rx_bytes_per_s",
           _gauge("ullage_pcie_receive_bytes_per_second", "PCIe traffic of the GPU, received.")),
    _Field("is_lost", _gauge("ullage_gpu_lost", "1 if the driver has lost the GPU, else 0.")),
)  # fmt: skip
_THROTTLE_REASONS: Final = (
    "clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown",
    "hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clock_setting",
)  # fmt: skip
_THROTTLING: Final = _gauge(
    "ullage_throttling", "1 if the clocks are held down for this reason, 0 if not."
)
_SHARING: Final = _gauge(
    "ullage_gpu_sharing", "1 for the way in which the processes share the GPU: its mode."
)
_PROCESS_BYTES: Final = _gauge(
    "ullage_process_memory_bytes", "Memory of a process on the GPU, as the driver has it."
)
_PROCESS_SM: Final = _gauge(
    "ullage_process_sm_ratio", "Share of the last second in which the process's kernels ran."
)
GPU_METRICS: Final = (
    *(field.metric for field in _FIELDS),
    _THROTTLING,
    _SHARING,
    _PROCESS_BYTES,
    _PROCESS_SM,
)


def gpu_points(sample: Sample, *, with_names: bool) -> Iterator[Point]:
    """The values of all GPUs and of the processes on them.

    Args:
        sample: what is exported.
        with_names: whether processes are labelled with the names of their programs.
    """
    for device in sample.devices:
        labels = gpu_labels(device)
        yield from _device_points(device, labels | known_labels(Hostname=sample.host))
        sharing = sharing_of(device, sample.devices)
        if sharing is not None and not device.is_lost:
            yield Point(_SHARING, labels | {"mode": sharing.value}, 1.0)
        for process in device.processes or ():
            of_process = labels | owner_labels(process, with_names=with_names)
            if process.used_bytes is not None:
                yield Point(_PROCESS_BYTES, of_process, float(process.used_bytes))
            if process.sm_frac is not None:
                yield Point(_PROCESS_SM, of_process, process.sm_frac)


def owner_labels(process: ProcessSample, *, with_names: bool) -> dict[str, str]:
    """Whose a process is, as far as it is known; `pod`, `namespace`, `container` and `hpc_job` are
    dcgm-exporter's names.
    """
    return known_labels(
        pid=process.pid,
        kind=process.kind.value,
        user=process.user,
        container_id=process.container,
        pod_uid=process.pod,
        pod=process.pod_name,
        namespace=process.pod_namespace,
        container=process.container_name,
        hpc_job=process.slurm_job,
        slurm_step=process.slurm_step,
        slurm_array=process.slurm_array,
        program=process.name if with_names else None,
    )


def _device_points(device: DeviceSample, labels: dict[str, str]) -> Iterator[Point]:
    for field in _FIELDS:
        value = getattr(device, field.name)
        if value is not None:
            yield Point(field.metric, labels, value * field.factor)
    reasons = device.throttle_reasons
    if reasons is not None:
        for reason in (*_THROTTLE_REASONS, *sorted(reasons - {*_THROTTLE_REASONS})):
            yield Point(_THROTTLING, labels | {"reason": reason}, float(reason in reasons))
