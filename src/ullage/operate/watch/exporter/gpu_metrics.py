"""NVML's figures of GPUs and processes, as metrics.

Where dcgm-exporter exports the same quantity, the metric has its name, unit and labels, so that
dashboards and rules for it go on working; all others begin with `ullage_`. What is not known is not
exported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ullage.operate.doors.metric import Metric, Point, Type, figure, known_labels, read_figures
from ullage.operate.watch.sample import DeviceSample, ProcessSample, Sample
from ullage.operate.watch.sharing import sharing_of

_MIB: Final = 2.0**-20
_PERCENT: Final = 100.0


_OF_DEVICE: Final = (
    figure("total_bytes", "DCGM_FI_DEV_FB_TOTAL", "Memory in all (MiB).", _MIB),
    figure("used_bytes", "DCGM_FI_DEV_FB_USED", "Memory of all processes (MiB).", _MIB),
    figure("free_bytes", "DCGM_FI_DEV_FB_FREE", "Free memory (MiB).", _MIB),
    figure("reserved_bytes", "DCGM_FI_DEV_FB_RESERVED",
            "Memory that the driver keeps for itself (MiB).", _MIB),
    figure("gpu_frac", "DCGM_FI_DEV_GPU_UTIL",
            "Share of time in which any kernel ran (%).", _PERCENT),
    figure("memory_frac", "DCGM_FI_DEV_MEM_COPY_UTIL",
            "Share of time in which memory was read or written (%).", _PERCENT),
    figure("sm_active_frac", "DCGM_FI_PROF_SM_ACTIVE",
            "Share of the multiprocessors that were busy (0 to 1), by NVML's GPM."),
    figure("sm_occupancy_frac", "DCGM_FI_PROF_SM_OCCUPANCY",
            "Share of the possible warps that were there (0 to 1), by NVML's GPM."),
    figure("dram_active_frac", "DCGM_FI_PROF_DRAM_ACTIVE",
            "Share of the memory's bandwidth that was used (0 to 1), by NVML's GPM."),
    figure("temperature_c", "DCGM_FI_DEV_GPU_TEMP", "Temperature (degrees C)."),
    figure("slowdown_c", "DCGM_FI_DEV_SLOWDOWN_TEMP",
            "Temperature at which the GPU slows down (degrees C)."),
    figure("shutdown_c", "DCGM_FI_DEV_SHUTDOWN_TEMP",
            "Temperature at which the GPU switches off (degrees C)."),
    figure("power_w", "DCGM_FI_DEV_POWER_USAGE", "Power (W)."),
    figure("power_limit_w", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
            "Limit of power that is in force (W)."),
    figure("sm_clock_mhz", "DCGM_FI_DEV_SM_CLOCK", "Clock of the multiprocessors (MHz)."),
    figure("sm_clock_max_mhz", "DCGM_FI_DEV_MAX_SM_CLOCK",
            "Highest clock of the multiprocessors (MHz)."),
    figure("memory_clock_mhz", "DCGM_FI_DEV_MEM_CLOCK", "Clock of the memory (MHz)."),
    figure("memory_clock_max_mhz", "DCGM_FI_DEV_MAX_MEM_CLOCK",
            "Highest clock of the memory (MHz)."),
    figure("ecc_corrected", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
            "Corrected memory errors since the driver was loaded.", kind=Type.UNKNOWN),
    figure("ecc_uncorrected", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
            "Uncorrected memory errors since the driver was loaded.", kind=Type.UNKNOWN),
    figure("pcie_tx_bytes_per_s", "ullage_pcie_transmit_bytes_per_second",
            "PCIe traffic of the GPU, sent."),
    figure("pcie_rx_bytes_per_s", "ullage_pcie_receive_bytes_per_second",
            "PCIe traffic of the GPU, received."),
    figure("is_lost", "ullage_gpu_lost", "1 if the driver has lost the GPU, else 0."),
)  # fmt: skip
_THROTTLE_REASONS: Final = (
    "clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown",
    "hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clock_setting",
)  # fmt: skip
_OF_PROCESS: Final = (
    figure("used_bytes", "ullage_process_memory_bytes",
           "Memory of a process on the GPU, from the driver."),
    figure("sm_frac", "ullage_process_sm_ratio",
           "Share of the last second in which the process's kernels ran."),
)  # fmt: skip
_THROTTLING: Final = Metric(
    "ullage_throttling", Type.GAUGE,
    "1 if the clocks are held down for this reason, 0 if not.",
)  # fmt: skip
_SHARING: Final = Metric(
    "ullage_gpu_sharing", Type.GAUGE,
    "1 for the way in which the processes share the GPU: its mode.",
)  # fmt: skip
GPU_METRICS: Final = (
    *(each.metric for each in (*_OF_DEVICE, *_OF_PROCESS)), _THROTTLING, _SHARING,
)  # fmt: skip


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
            yield from read_figures(_OF_PROCESS, process, of_process)


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
    yield from read_figures(_OF_DEVICE, device, labels)
    reasons = device.throttle_reasons
    if reasons is not None:
        for reason in (*_THROTTLE_REASONS, *sorted(reasons - {*_THROTTLE_REASONS})):
            yield Point(_THROTTLING, labels | {"reason": reason}, float(reason in reasons))


def gpu_labels(device: DeviceSample) -> dict[str, str]:
    """The labels of a GPU as in dcgm-exporter: a MIG device has those of its GPU and its
    instances' numbers.
    """
    mig = device.mig
    parent = None if mig is None else mig.parent_uuid
    return known_labels(
        gpu=device.index,
        UUID=parent or device.uuid,
        modelName=device.name,
        GPU_I_ID=None if mig is None else mig.gpu_instance,
        compute_instance=None if mig is None else mig.compute_instance,
    )
