"""Samples to export: jobs on a GPU, a MIG device, and one of which nothing is known."""

from __future__ import annotations

import pytest

from ullage.ground.protocol.job import Job, JobDevice, StepPeak
from ullage.operate.watch.sample import (
    DeviceSample,
    MigInstance,
    ProcessKind,
    ProcessSample,
    Sample,
)

GIB = 2**30


def make_device(**fields: object) -> DeviceSample:
    """A GPU of which everything is known."""
    values: dict[str, object] = {
        "index": 0,
        "uuid": "GPU-0",
        "name": "NVIDIA H100 80GB HBM3",
        "total_bytes": 80 * GIB,
        "used_bytes": 50 * GIB,
        "free_bytes": 29 * GIB,
        "reserved_bytes": GIB,
        "gpu_frac": 0.62,
        "memory_frac": 0.25,
        "temperature_c": 68,
        "slowdown_c": 89,
        "shutdown_c": 92,
        "power_w": 528.5,
        "power_limit_w": 700.0,
        "sm_clock_mhz": 1755,
        "sm_clock_max_mhz": 1980,
        "memory_clock_mhz": 2619,
        "memory_clock_max_mhz": 2619,
        "pcie_tx_bytes_per_s": 1000,
        "pcie_rx_bytes_per_s": 2000,
        "throttle_reasons": frozenset({"sw_power_cap"}),
        "sm_active_frac": 0.41,
        "sm_occupancy_frac": 0.3,
        "dram_active_frac": 0.33,
        "ecc_corrected": 5,
        "ecc_uncorrected": 0,
        "processes": (),
    }
    return DeviceSample(**(values | fields))  # type: ignore[arg-type]


def make_job(pid: int, **fields: object) -> Job:
    """A job on GPU-0 whose peak grows by a GiB in each step of half a second."""
    part = JobDevice(
        0, "GPU-0", 20 * GIB, 26 * GIB, 21 * GIB, 2 * GIB, 30 * GIB, 31 * GIB, 3, 1, 7, 80 * GIB
    )
    peaks = tuple(StepPeak(step, (10 + step) * GIB, 31 * GIB, 0.5) for step in range(20))
    values: dict[str, object] = {
        "pid": pid,
        "started_s": 100.0,
        "updated_s": 199.0,
        "name": "train.py",
        "devices": (part,),
        "rank": 2,
        "world_size": 4,
        "step": 20,
        "step_seconds": 0.5,
        "scaler_skips": 4,
        "step_peaks": peaks,
    }
    return Job(**(values | fields))  # type: ignore[arg-type]


@pytest.fixture
def full_sample() -> Sample:
    """Two jobs and another process on a GPU, a MIG device of another, and a job elsewhere."""
    processes = (
        ProcessSample(11, ProcessKind.COMPUTE, 27 * GIB, "train.py", "ada", "c" * 64, "pod-1", "7",
                      pod_name="train-0", pod_namespace="research", container_name="main",
                      slurm_step="0"),
        ProcessSample(12, ProcessKind.COMPUTE, 10 * GIB, "train.py", "ada", sm_frac=0.4),
        ProcessSample(13, ProcessKind.MPS, None, 'say "hi"\n', "bob"),
    )  # fmt: skip
    mig = MigInstance("GPU-1", 3, 0)
    far = JobDevice(1, "GPU-9", 1, 2, 3, 4, 5, 6, 7, 8, None, 9)
    unseen = Job(14, 1.0, 2.0, "x.py", (far,))
    return Sample(
        200.5,
        "gpu-host",
        (
            make_device(processes=processes),
            make_device(index=1, uuid="GPU-1"),
            make_device(index=1, uuid="MIG-1", mig=mig, gpu_frac=None),
        ),
        (make_job(11), make_job(12, rank=3, step_peaks=()), unseen),
        driver_version="580.00.00",
    )


@pytest.fixture
def unknown_sample() -> Sample:
    """A lost GPU, another one, and a process, of which nothing is known."""
    process = ProcessSample(13, ProcessKind.COMPUTE, None)
    return Sample(
        200.5,
        "gpu-host",
        (
            DeviceSample(0, None, None, is_lost=True),
            DeviceSample(1, None, None, processes=(process,)),
        ),
    )
