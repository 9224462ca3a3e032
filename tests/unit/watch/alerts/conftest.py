"""Machines of the tests' own, second by second."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ullage.ground.protocol.job import Job, JobDevice, StepPeak
from ullage.operate.watch.alerts.engine import watch_rules
from ullage.operate.watch.alerts.event import Event
from ullage.operate.watch.alerts.rules_file import DEFAULTS
from ullage.operate.watch.sample import DeviceSample, ProcessKind, ProcessSample, Sample

GIB = 2**30


class Scene:
    """Makes samples, and runs the default rules over them."""

    def gpu(self, **fields: Any) -> DeviceSample:
        used = fields.pop("used", 20 * GIB)
        usual = {
            "index": 0, "uuid": "GPU-0", "name": "NVIDIA H100", "total_bytes": 80 * GIB,
            "used_bytes": used, "free_bytes": 80 * GIB - used, "gpu_frac": 0.9,
            "temperature_c": 60, "slowdown_c": 87, "power_w": 500.0, "power_limit_w": 700.0,
            "throttle_reasons": frozenset(), "ecc_corrected": 0, "ecc_uncorrected": 0,
            "processes": (self.process(),),
        }  # fmt: skip
        return DeviceSample(**(usual | fields))

    def process(self, pid: int = 100, used: int = 20 * GIB, **fields: Any) -> ProcessSample:
        return ProcessSample(pid, ProcessKind.COMPUTE, used, **fields)

    def job(self, step: int = 0, peaks: Sequence[float] = (), **fields: Any) -> Job:
        """A job; `peaks` (GiB) are those of its last steps."""
        changes = fields.pop("device", {})
        seconds = fields.pop("seconds", 1.0)
        device = JobDevice(
            index=0, uuid="GPU-0", allocated_bytes=10 * GIB, reserved_bytes=19 * GIB,
            active_bytes=10 * GIB, inactive_split_bytes=0, allocated_peak_bytes=15 * GIB,
            reserved_peak_bytes=19 * GIB, num_alloc_retries=0, num_ooms=0, num_device_frees=0,
            total_bytes=80 * GIB,
        )  # fmt: skip
        rows = tuple(
            StepPeak(step - len(peaks) + place, int(peak * GIB), 19 * GIB, seconds)
            for place, peak in enumerate(peaks)
        )
        usual = {
            "pid": 100, "started_s": 1.0, "updated_s": 2.0, "name": "train.py", "step": step,
            "devices": (replace(device, **changes),), "step_peaks": rows,
        }  # fmt: skip
        return Job(**(usual | fields))

    def sample(self, time_s: float, *gpus: DeviceSample, **fields: Any) -> Sample:
        jobs = tuple(replace(job, updated_s=time_s) for job in fields.pop("jobs", ()))
        return Sample(time_s, "node-1", gpus or (self.gpu(),), jobs, **fields)

    def course(self, seconds: int, make: Callable[[int], Sample], step: int = 1) -> list[Sample]:
        """A sample each `step` seconds."""
        return [make(1000 + passed) for passed in range(0, seconds, step)]

    def events(self, samples: Iterable[Sample], *names: str) -> list[tuple[float, str, Event]]:
        """(seconds, "raised" or "cleared", event) of some of the default rules."""
        rules = [rule for rule in DEFAULTS if rule.name in names or not names]
        return [
            (event.time_s - 1000, event.change.value, event)
            for event in watch_rules(samples, rules)
        ]

    def changes(self, samples: Iterable[Sample], *names: str) -> list[tuple[float, str, str]]:
        """(seconds, "raised" or "cleared", rule)."""
        return [(at, change, event.rule.name) for at, change, event in self.events(samples, *names)]


@pytest.fixture
def scene() -> Scene:
    """The maker."""
    return Scene()
