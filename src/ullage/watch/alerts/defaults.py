"""The ways to measure, and the rules that hold where no configuration says otherwise: one of each
kind, under its name.

The figures are choices, not measurements. Each says from when on somebody would want to know; for
the ends of a GPU's range they lean on what its driver says of it (its limit of power, the
temperature at which it slows down).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ullage.watch.alerts.meters import gpus, growth, jobs, load, memory
from ullage.watch.alerts.reading import each_gpu, each_job
from ullage.watch.alerts.rule import Kind, Rule, Severity, Unit

_ALL: Final = (
    Kind("allocated", Unit.SHARE, each_job, memory.measure_allocated,
         "peak of a job's allocated memory, as a share of what it can have"),
    Kind("reserved", Unit.COUNT, each_job, memory.measure_pressure,
         "samples in which the allocator retried or gave segments back, while nearly all that it "
         "can have is reserved (a full cache alone is healthy)",
         least_says="share of its limit that the job must have reserved", can_look_back=True),
    Kind("unpublished", Unit.SHARE, each_gpu, memory.measure_unpublished,
         "used memory of a GPU with processes that publish nothing, without the caches of those "
         "that do"),
    Kind("forecast", Unit.SECONDS, each_job, growth.measure_time_left,
         "time until the growing peak of a job's steps reaches its limit", is_below=True),
    Kind("growth", Unit.BYTES, each_job, growth.measure_growth,
         "growth of the peak from step to step over the last 36 steps or more"),
    Kind("fragmentation", Unit.SHARE, each_job, memory.measure_fragmentation,
         "unused pieces of partly used segments at the peak, as a share of reserved memory",
         least_says="share of its limit that the job must have reserved"),
    Kind("out-of-memory", Unit.COUNT, each_job, memory.measure_ooms,
         "times a job ran out of memory, and survived it", can_look_back=True),
    Kind("temperature", Unit.DEGREES, each_gpu, gpus.measure_temperature,
         "temperature above that at which this GPU slows down (negative: below it)"),
    Kind("throttling", Unit.SHARE, each_gpu, gpus.measure_throttling,
         "time in which heat or the power supply held the clocks down", can_look_back=True),
    Kind("utilisation", Unit.SHARE, each_gpu, load.measure_utilisation_drop,
         "activity of multiprocessors and memory as a share of what it was with the same processes "
         "(utilisation where the driver knows no activity: it only says that a kernel was there)",
         is_below=True,
         least_says="utilisation that there must have been before", can_look_back=True),
    Kind("power", Unit.SHARE, each_gpu, load.measure_power_change,
         "change of power with the same processes at the same utilisation", can_look_back=True),
    Kind("power-limit", Unit.SHARE, each_gpu, gpus.measure_power_limit,
         "power as a share of the GPU's limit", can_look_back=True),
    Kind("ecc-uncorrected", Unit.COUNT, each_gpu, gpus.measure_uncorrected,
         "uncorrected memory errors", can_look_back=True),
    Kind("ecc-corrected", Unit.COUNT, each_gpu, gpus.measure_corrected,
         "corrected memory errors", can_look_back=True),
    Kind("gpu-lost", Unit.COUNT, each_gpu, gpus.measure_loss, "1 if the driver has lost the GPU"),
    Kind("idle-holder", Unit.COUNT, load.each_process, load.measure_idleness,
         "1 if a process holds memory and does nothing",
         least_says="share of the GPU's memory that it must hold"),
    Kind("straggler-time", Unit.SHARE, jobs.each_rank, jobs.measure_straggler_time,
         "time of a rank's step above that of the other ranks here (ranks that wait for each other "
         "all take as long as the slowest)"),
    Kind("straggler-memory", Unit.SHARE, jobs.each_rank, jobs.measure_straggler_memory,
         "difference of a rank's peak from that of the other ranks here"),
    Kind("scaler-skips", Unit.SHARE, jobs.each_scaled_job, jobs.measure_scaler_skips,
         "share of the last steps that the gradient scaler skipped, after its first 50"),
)  # fmt: skip
KINDS: Final[Mapping[str, Kind]] = {kind.name: kind for kind in _ALL}

_MINUTE: Final = 60.0


def _rule(name: str, threshold: float, clear: float, **fields: float | Severity) -> Rule:
    return Rule(name, KINDS[name], threshold, clear, **fields)  # type: ignore[arg-type]


DEFAULTS: Final = (
    _rule("allocated", 0.95, 0.90, clear_for_s=_MINUTE),
    _rule("reserved", 2, 0, clear_for_s=30, window_s=120, least=0.9),
    _rule("unpublished", 0.90, 0.85, for_s=_MINUTE, clear_for_s=_MINUTE),
    _rule("forecast", 10 * _MINUTE, 20 * _MINUTE, for_s=_MINUTE, clear_for_s=_MINUTE,
          severity=Severity.CRITICAL),
    _rule("growth", 4096, 0, for_s=_MINUTE, clear_for_s=_MINUTE),
    _rule("fragmentation", 0.30, 0.20, for_s=_MINUTE, clear_for_s=_MINUTE, least=0.5),
    _rule("out-of-memory", 0, 0, window_s=5 * _MINUTE, severity=Severity.CRITICAL),
    _rule("temperature", -5, -10, for_s=30, clear_for_s=_MINUTE),
    _rule("throttling", 0.5, 0.1, clear_for_s=_MINUTE, window_s=_MINUTE),
    _rule("utilisation", 0.5, 0.8, for_s=5 * _MINUTE, clear_for_s=_MINUTE, window_s=_MINUTE,
          least=0.5),
    _rule("power", 0.35, 0.20, for_s=_MINUTE, clear_for_s=_MINUTE, window_s=_MINUTE),
    _rule("power-limit", 1.05, 1.02, for_s=30, clear_for_s=_MINUTE, window_s=30),
    _rule("ecc-uncorrected", 0, 0, window_s=10 * _MINUTE, severity=Severity.CRITICAL),
    _rule("ecc-corrected", 100, 10, window_s=10 * _MINUTE),
    _rule("gpu-lost", 0, 0, severity=Severity.CRITICAL),
    _rule("idle-holder", 0, 0, for_s=30 * _MINUTE, least=0.05, severity=Severity.INFO),
    _rule("straggler-time", 0.25, 0.10, for_s=30, clear_for_s=_MINUTE),
    _rule("straggler-memory", 0.15, 0.10, for_s=30, clear_for_s=_MINUTE),
    _rule("scaler-skips", 0.20, 0.05, clear_for_s=30),
)  # fmt: skip
