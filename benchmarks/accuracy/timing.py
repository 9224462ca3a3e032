"""The time of a workload's step, and of its kernels: the same code on a GPU and on the phantom,
where the clock of the run (`--clock virtual`) answers.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

STEPS = 8


def wall_seconds(step: Callable[[], None]) -> float:
    """Seconds from an idle GPU to an idle GPU, with one step between."""
    import torch

    torch.cuda.synchronize()
    begin = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def kernel_times(step: Callable[[], None]) -> dict[str, list[float]]:
    """Calls and microseconds in one step of each kernel, copy and fill, by its name."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        wall_seconds(step)
    rows = [row for row in profiler.key_averages() if row.device_type == DeviceType.CUDA]
    return {row.key: [row.count, row.self_device_time_total] for row in rows}


def timed(step: Callable[[], None]) -> dict[str, Any]:
    """Times of STEPS steps, and the kernels of one more."""
    seconds = [wall_seconds(step) for _ in range(STEPS)]
    return {
        "step_seconds": seconds,
        "median_step_seconds": statistics.median(seconds),
        "kernels": kernel_times(step),
    }
