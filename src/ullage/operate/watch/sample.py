"""The state of a machine's GPUs at one moment.

A `Sample` holds the GPUs with the processes on them, and the recorded jobs, which publish their
allocator's counters. Sources make samples (operate/watch/source.py, operate/watch/recording.py);
the text, the page, alerts and exporters read them.

What a driver does not say is None, and a `Note` of the sample gives the field and the reason. A
field is never 0 because it is unknown.

Units: bytes, seconds since 1970, watts, degrees Celsius, MHz; fractions from 0 to 1.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

from ullage.ground.protocol.job import Job


class ProcessKind(enum.Enum):
    """The use of a GPU by a process."""

    COMPUTE = "compute"
    GRAPHICS = "graphics"
    MPS = "mps"


@dataclass(frozen=True, slots=True)
class Note:
    """Why a field of some GPUs is None, or what else a reader of the sample is to know.

    `devices` are indices; empty: of the machine. `field` is a field of `DeviceSample` or
    `ProcessSample`, or "devices" or "jobs".
    """

    field: str
    reason: str
    devices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """A process that holds memory of a GPU.

    `container` is the ID of its container and `pod` the UID of its pod; the names of both, and the
    parts of a Slurm job, are as in operate/watch/nvml/cluster.py. `is_own` is False if the process
    is not visible in this PID namespace, as that of another container; then nothing but its number
    and its memory is known. `sm_frac` is the share of the last second in which the GPU ran its
    kernels.
    """

    pid: int
    kind: ProcessKind
    used_bytes: int | None
    name: str | None = None
    user: str | None = None
    container: str | None = None
    pod: str | None = None
    slurm_job: str | None = None
    is_own: bool = True
    sm_frac: float | None = None
    pod_name: str | None = None
    pod_namespace: str | None = None
    container_name: str | None = None
    slurm_step: str | None = None
    slurm_array: str | None = None


@dataclass(frozen=True, slots=True)
class MigInstance:
    """Which part of a GPU a MIG device is."""

    parent_uuid: str | None
    gpu_instance: int
    compute_instance: int


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """A GPU, or a MIG device of one.

    `used_bytes` is that of all processes and contexts; `reserved_bytes` is what the driver keeps
    for itself (not the allocator's cache). `gpu_frac` is the share of time in which any kernel ran,
    `memory_frac` in which memory was read or written. `sm_active_frac` is the share of the
    multiprocessors that were busy, `sm_occupancy_frac` that of the possible warps that were there,
    `dram_active_frac` that of the memory's bandwidth that was used: Hopper and newer.
    `ecc_corrected` and `ecc_uncorrected` count errors since the driver was loaded. A lost GPU has
    its identity alone, and not even that if it was lost before the first look.
    """

    index: int
    uuid: str | None
    name: str | None
    mig: MigInstance | None = None
    is_lost: bool = False
    total_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    reserved_bytes: int | None = None
    gpu_frac: float | None = None
    memory_frac: float | None = None
    temperature_c: int | None = None
    slowdown_c: int | None = None
    shutdown_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    pcie_tx_bytes_per_s: int | None = None
    pcie_rx_bytes_per_s: int | None = None
    throttle_reasons: frozenset[str] | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    processes: tuple[ProcessSample, ...] | None = None
    sm_active_frac: float | None = None
    sm_occupancy_frac: float | None = None
    dram_active_frac: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """The machine at one moment; `jobs` are the running ones, as they published themselves."""

    SCHEMA: ClassVar[str] = "ullage.watch/1"

    time_s: float
    host: str
    devices: tuple[DeviceSample, ...]
    jobs: tuple[Job, ...] = ()
    notes: tuple[Note, ...] = ()
    driver_version: str | None = None
