"""Each job is placed on its GPUs, and nothing is counted twice."""

from __future__ import annotations

from dataclasses import replace

from ullage.ground.protocol.job import Job, JobDevice, StepPeak
from ullage.operate.watch.sample import DeviceSample, ProcessKind, ProcessSample, Sample
from ullage.operate.watch.view import view

GIB = 2**30
PART = JobDevice(0, "GPU-1", 4 * GIB, 6 * GIB, 5 * GIB, GIB, 5 * GIB, 7 * GIB, 0, 0, 0, 80 * GIB)
JOB = Job(7, 0.0, 90.0, "train.py", (PART,))


def process(pid: int) -> ProcessSample:
    """A process with 8 GiB."""
    return ProcessSample(pid, ProcessKind.COMPUTE, 8 * GIB)


def gpu(index: int, *pids: int) -> DeviceSample:
    """A GPU of 80 GiB with 50 free."""
    return DeviceSample(
        index, f"GPU-{index}", "H100", total_bytes=80 * GIB, free_bytes=50 * GIB,
        processes=tuple(map(process, pids)),
    )  # fmt: skip


def sample(*jobs: Job, devices: tuple[DeviceSample, ...] | None = None) -> Sample:
    """Two GPUs; processes 7 and 8 are on the second."""
    return Sample(100.0, "host", devices or (gpu(0, 9), gpu(1, 7, 8)), jobs)


def test_a_job_is_on_the_gpu_of_its_uuid() -> None:
    first, second = view(sample(JOB)).gpus
    (job,) = second.jobs
    assert first.jobs == () and [each.pid for each in first.others] == [9]
    assert [each.pid for each in second.others] == [8]
    assert job.process == process(7)
    assert job.limit_bytes == 56 * GIB
    assert job.headroom_bytes == 52 * GIB
    assert job.cached_bytes == 2 * GIB
    assert job.age_s == 10.0
    assert (second.allocated_bytes, second.reserved_bytes) == (4 * GIB, 6 * GIB)
    assert second.fragmented_bytes == GIB


def test_without_a_uuid_the_drivers_list_tells() -> None:
    first, second = view(sample(replace(JOB, devices=(replace(PART, uuid=None),)))).gpus
    assert first.jobs == () and len(second.jobs) == 1


def test_without_both_the_jobs_own_number_tells() -> None:
    job = replace(JOB, devices=(replace(PART, uuid=None),))
    first, second = view(sample(job, devices=(gpu(0), gpu(1)))).gpus
    assert len(first.jobs) == 1 and second.jobs == ()


def test_a_job_whose_gpu_is_not_here_is_elsewhere() -> None:
    job = replace(JOB, devices=(replace(PART, uuid="GPU-9"),))
    seen = view(sample(job))
    assert seen.elsewhere == (job,)
    assert not list(seen.jobs())


def test_the_headroom_is_that_of_the_last_steps_peak() -> None:
    peaks = tuple(StepPeak(step, (10 + step) * GIB, 0, 2.0) for step in range(16))
    (job,) = view(sample(replace(JOB, step_peaks=peaks))).jobs()
    assert job.headroom_bytes == (56 - 25) * GIB
    assert job.forecast is not None
    assert abs(job.forecast.seconds - 31 * 2.0) < 1e-6


def test_the_peaks_of_steps_are_those_of_the_fullest_gpu_alone() -> None:
    peaks = tuple(StepPeak(step, (10 + step) * GIB, 0, 2.0) for step in range(16))
    other = replace(PART, index=1, uuid="GPU-0", allocated_peak_bytes=0)
    job = replace(JOB, devices=(PART, other), step_peaks=peaks)
    forecasts = {each.device.uuid: each.forecast is not None for each in view(sample(job)).jobs()}
    assert forecasts == {"GPU-0": False, "GPU-1": True}


def test_what_is_unknown_of_the_gpu_is_unknown_of_the_job() -> None:
    lost = DeviceSample(1, "GPU-1", "H100", is_lost=True)
    (job,) = view(sample(JOB, devices=(lost,))).jobs()
    assert job.limit_bytes is None and job.headroom_bytes is None and job.forecast is None
