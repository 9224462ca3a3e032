"""What the exporter's metrics and labels are called in OpenTelemetry.

    instrument_of(metric)           # hw.gpu.memory.usage, By, from MiB
    attributes_of(instrument, {"gpu": "0", "UUID": "GPU-1", "pid": "7"})
    # {"hw.id": "GPU-1", "hw.name": "GPU 0", "process.pid": 7, ...}

Where the semantic conventions have the same quantity, its name, unit and kind are theirs (those of
hardware, of processes, of containers and of Kubernetes, as of version 1.44; the ones of GPUs are in
development still). All else begins with "ullage.", in base units, so that the name that a collector
makes of it for Prometheus is the exporter's: `ullage.reserved` in By is ullage_reserved_bytes.

Source: opentelemetry.io/docs/specs/semconv/hardware/gpu
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ullage.watch.exporter.metric import Metric, Type

Attributes = dict[str, str | int]
_MIB: Final = 2.0**20
_PERCENT: Final = 0.01
_MHZ: Final = 1e6


class Kind(enum.Enum):
    """OpenTelemetry's kinds of instruments. UP_DOWN: its values may be summed, over GPUs."""

    GAUGE = "gauge"
    COUNTER = "counter"
    UP_DOWN = "up_down_counter"


@dataclass(frozen=True, slots=True)
class Instrument:
    """A metric there.

    Attributes:
        name, unit, kind: as the backend gets them; units by UCUM.
        factor: from the exporter's unit to this one.
        attributes: that every point of this metric has.
    """

    name: str
    unit: str
    kind: Kind = Kind.GAUGE
    factor: float = 1.0
    attributes: tuple[tuple[str, str], ...] = ()


_GPU: Final = ("hw.type", "gpu")
_INSTRUMENTS: Final = {
    "DCGM_FI_DEV_FB_TOTAL": Instrument("hw.gpu.memory.limit", "By", Kind.UP_DOWN, _MIB),
    "DCGM_FI_DEV_FB_USED": Instrument("hw.gpu.memory.usage", "By", Kind.UP_DOWN, _MIB),
    "DCGM_FI_DEV_FB_FREE": Instrument("ullage.gpu.memory.free", "By", Kind.UP_DOWN, _MIB),
    "DCGM_FI_DEV_FB_RESERVED": Instrument("ullage.gpu.memory.driver", "By", Kind.UP_DOWN, _MIB),
    "DCGM_FI_DEV_GPU_UTIL": Instrument(
        "hw.gpu.utilization", "1", factor=_PERCENT, attributes=(("hw.gpu.task", "general"),)
    ),
    "DCGM_FI_DEV_MEM_COPY_UTIL": Instrument("ullage.gpu.memory.activity", "1", factor=_PERCENT),
    "DCGM_FI_PROF_SM_ACTIVE": Instrument("ullage.gpu.sm.active", "1"),
    "DCGM_FI_PROF_SM_OCCUPANCY": Instrument("ullage.gpu.sm.occupancy", "1"),
    "DCGM_FI_PROF_DRAM_ACTIVE": Instrument("ullage.gpu.dram.active", "1"),
    "DCGM_FI_DEV_GPU_TEMP": Instrument("hw.temperature", "Cel"),
    "DCGM_FI_DEV_SLOWDOWN_TEMP": Instrument(
        "hw.temperature.limit", "Cel", attributes=(("hw.limit_type", "high.degraded"),)
    ),
    "DCGM_FI_DEV_SHUTDOWN_TEMP": Instrument(
        "hw.temperature.limit", "Cel", attributes=(("hw.limit_type", "high.critical"),)
    ),
    "DCGM_FI_DEV_POWER_USAGE": Instrument("hw.power", "W", attributes=(_GPU,)),
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": Instrument("ullage.gpu.power.limit", "W"),
    "DCGM_FI_DEV_SM_CLOCK": Instrument("ullage.gpu.sm.clock", "Hz", factor=_MHZ),
    "DCGM_FI_DEV_MAX_SM_CLOCK": Instrument("ullage.gpu.sm.clock.limit", "Hz", factor=_MHZ),
    "DCGM_FI_DEV_MEM_CLOCK": Instrument("ullage.gpu.memory.clock", "Hz", factor=_MHZ),
    "DCGM_FI_DEV_MAX_MEM_CLOCK": Instrument("ullage.gpu.memory.clock.limit", "Hz", factor=_MHZ),
    # `ullage.step` is how long one takes.
    "ullage_step": Instrument("ullage.steps", "{step}"),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": Instrument(
        "hw.errors", "{error}", Kind.COUNTER, attributes=(_GPU, ("error.type", "corrected"))
    ),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": Instrument(
        "hw.errors", "{error}", Kind.COUNTER, attributes=(_GPU, ("error.type", "uncorrected"))
    ),
}
# The longer endings first.
_UNITS: Final = (
    ("_bytes_per_second", "By/s"),
    ("_bytes_per_step", "By/{step}"),
    ("_bytes", "By"),
    ("_seconds", "s"),
    ("_ratio", "1"),
)
_ATTRIBUTES: Final = {
    "modelName": "hw.model",
    "driver_version": "hw.driver_version",
    "pid": "process.pid",
    "user": "process.owner",
    "container_id": "container.id",
    "container": "k8s.container.name",
    "pod_uid": "k8s.pod.uid",
    "pod": "k8s.pod.name",
    "namespace": "k8s.namespace.name",
    "version": "service.version",
    "hpc_job": "ullage.slurm.job",
    "slurm_step": "ullage.slurm.step",
    "slurm_array": "ullage.slurm.array",
}
_NUMBERS: Final = frozenset({"pid", "rank", "job_device"})
_OF_A_GPU: Final = frozenset({"gpu", "UUID", "GPU_I_ID", "compute_instance"})
# The resource has it.
_HOST: Final = "Hostname"


def instrument_of(metric: Metric) -> Instrument:
    """What a metric is there."""
    instrument = _INSTRUMENTS.get(metric.name)
    if instrument is not None:
        return instrument
    words = metric.name.removeprefix("ullage_").removesuffix("_total")
    unit = ""
    for ending, name in _UNITS:
        if words.endswith(ending):
            words, unit = words.removesuffix(ending), name
            break
    kind = Kind.COUNTER if metric.type is Type.COUNTER else Kind.GAUGE
    return Instrument(f"ullage.{words}", unit, kind)


def attributes_of(instrument: Instrument, labels: Mapping[str, str]) -> Attributes:
    """The attributes of a point with these labels."""
    attributes: Attributes = dict(instrument.attributes)
    if "gpu" in labels or "UUID" in labels:
        attributes |= _gpu_attributes(labels)
    for label, value in labels.items():
        if label not in _OF_A_GPU and label != _HOST:
            name = _ATTRIBUTES.get(label, f"ullage.{label}")
            attributes[name] = int(value) if label in _NUMBERS else value
    return attributes


def _gpu_attributes(labels: Mapping[str, str]) -> Attributes:
    """Which GPU it is: a MIG device is a part of its parent, and has no UUID of its own here."""
    index = labels.get("gpu")
    parent = labels.get("UUID") or f"gpu-{index}"
    attributes: Attributes = {"hw.vendor": "NVIDIA"}
    if index is not None:
        attributes["hw.name"] = f"GPU {index}"
    if "GPU_I_ID" not in labels:
        return {**attributes, "hw.id": parent}
    part = f"{parent}/{labels['GPU_I_ID']}/{labels.get('compute_instance', '')}"
    return {**attributes, "hw.id": part, "hw.parent": parent}
