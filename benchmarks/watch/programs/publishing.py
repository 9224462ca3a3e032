"""What a recorded job publishes, written to a log beside the time on a clock of the program's own.

A step on the phantom takes milliseconds; the course says how long it would take.

    publisher = Publisher()
    for step in range(100):
        train()
        publisher.step(2.0)
"""

import json
import os
import tempfile
from pathlib import Path

import torch

from ullage.ground.protocol.job import Job, JobDevice, StepPeak, job_path, publish_job

START_S = 1_790_000_000.0


class Publisher:
    """Publishes after each step, as `ullage record` does, by the counters of torch."""

    def __init__(self) -> None:
        self.time_s = self.started_s = START_S + float(os.environ.get("COURSE_BEGIN", "0"))
        self.pid = int(os.environ["COURSE_PID"])
        rank, size = os.environ.get("COURSE_RANK"), os.environ.get("COURSE_WORLD")
        self.rank = None if rank is None else int(rank)
        self.world_size = None if size is None else int(size)
        self.steps: list[StepPeak] = []
        self.peaks = (0, 0)
        self.log = Path(os.environ["COURSE_LOG"]).open("w")  # noqa: SIM115
        self.directory = Path(tempfile.mkdtemp())

    def step(self, seconds: float, *, skips: int | None = None, phase: str | None = None) -> None:
        """A step has ended that took so long."""
        stats = torch.cuda.memory_stats()
        peaks = (stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"])
        torch.cuda.reset_peak_memory_stats()
        self.steps.append(StepPeak(len(self.steps), *peaks, seconds))
        self.peaks = (max(self.peaks[0], peaks[0]), max(self.peaks[1], peaks[1]))
        self.time_s += seconds
        free, total = torch.cuda.mem_get_info()
        device = JobDevice(
            index=0,
            uuid=f"GPU-{torch.cuda.get_device_properties(0).uuid}",
            allocated_bytes=stats["allocated_bytes.all.current"],
            reserved_bytes=stats["reserved_bytes.all.current"],
            active_bytes=stats["active_bytes.all.current"],
            inactive_split_bytes=stats["inactive_split_bytes.all.current"],
            allocated_peak_bytes=self.peaks[0],
            reserved_peak_bytes=self.peaks[1],
            num_alloc_retries=stats["num_alloc_retries"],
            num_ooms=stats["num_ooms"],
            num_device_frees=stats["num_device_free"],
            total_bytes=total,
        )
        job = Job(
            pid=self.pid,
            started_s=self.started_s,
            updated_s=self.time_s,
            name="train.py",
            devices=(device,),
            rank=self.rank,
            world_size=self.world_size,
            phase=phase,
            step=len(self.steps),
            step_seconds=seconds,
            scaler_skips=skips,
            step_peaks=tuple(self.steps[-64:]),
        )
        publish_job(job, self.directory)
        text = job_path(self.directory, self.pid).read_text()
        line = {"time_s": self.time_s, "used_bytes": total - free, "job": json.loads(text)}
        self.log.write(json.dumps(line) + "\n")
        self.log.flush()

    def idle(self, seconds: float) -> None:
        """Nothing is published for so long."""
        self.time_s += seconds
