"""The activity of multiprocessors and memory, by a scripted GPM."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ullage.operate.watch.machine import MachineSource
from ullage.operate.watch.sample import DeviceSample, Sample

FIELDS = ("sm_active_frac", "sm_occupancy_frac", "dram_active_frac")


@pytest.fixture
def read(tmp_path: Path, clock: Any) -> Callable[[Any], Callable[[], Sample]]:
    """`read(nvml)()` is the sample of a second later."""

    def begin(nvml: Any) -> Callable[[], Sample]:
        source = MachineSource(
            nvml, environment={"XDG_RUNTIME_DIR": str(tmp_path)}, proc=tmp_path, clock=clock
        )

        def later() -> Sample:
            clock.now_s += 1.1
            return source.read()

        return later

    return begin


def shares(device: DeviceSample) -> tuple[Any, ...]:
    """The three fields."""
    return tuple(getattr(device, field) for field in FIELDS)


def reasons(sample: Sample) -> dict[str, str]:
    """Why the fields are unknown."""
    return {note.field: note.reason for note in sample.notes if note.field in FIELDS}


def test_two_samples_make_the_shares(make_nvml: Any, read: Any) -> None:
    nvml = make_nvml(2)
    nvml.gpus[0].activity = (41.5, 20.0, 33.0)
    later = read(nvml)
    first = later()
    assert shares(first.devices[0]) == (None, None, None)
    for percent in (41.5, 60.0):
        nvml.gpus[0].activity = (percent, 20.0, 33.0)
        sample = later()
        assert shares(sample.devices[0]) == (percent / 100, 0.2, 0.33)
    assert shares(sample.devices[1]) == (None, None, None)
    assert set(reasons(sample).values()) == {"not supported by this GPU or its driver"}


def test_a_gpu_without_gpm_is_asked_once_a_minute(make_nvml: Any, read: Any) -> None:
    nvml = make_nvml()
    later = read(nvml)
    for _ in range(50):
        later()
    assert nvml.calls["nvmlGpmQueryDeviceSupport"] == 1 and nvml.num_samples == 0


def test_one_metric_may_be_refused(make_nvml: Any, read: Any) -> None:
    nvml = make_nvml()
    nvml.gpus[0].activity = (50.0, -3.0, 10.0)
    later = read(nvml)
    later()
    sample = later()
    assert shares(sample.devices[0]) == (0.5, None, 0.1)
    assert reasons(sample) == {"sm_occupancy_frac": "not supported by this GPU or its driver"}


@pytest.mark.parametrize("value", [math.nan, 250.0])
def test_a_figure_that_cannot_be_is_unknown(make_nvml: Any, read: Any, value: float) -> None:
    nvml = make_nvml()
    nvml.gpus[0].activity = (0.0, 0.0, 0.0)
    later = read(nvml)
    later()
    assert shares(later().devices[0]) == (0.0, 0.0, 0.0)
    nvml.gpus[0].activity = (value, 100.2, 0.0)
    sample = later()
    assert sample.devices[0].sm_active_frac is None and sample.devices[0].sm_occupancy_frac == 1.0


def test_after_a_refusal_two_samples_are_needed_again(make_nvml: Any, read: Any) -> None:
    nvml = make_nvml()
    nvml.gpus[0].activity = (50.0, 20.0, 10.0)
    later = read(nvml)
    later()
    assert later().devices[0].sm_active_frac == 0.5
    nvml.gpus[0].answers["nvmlGpmSampleGet"] = -10
    assert later().devices[0].sm_active_frac is None
    del nvml.gpus[0].answers["nvmlGpmSampleGet"]
    sample = later()
    assert sample.devices[0].sm_active_frac is None
    assert reasons(sample)["sm_active_frac"] == "a rate needs two readings"
    assert later().devices[0].sm_active_frac == 0.5


def test_samples_are_given_back_with_their_gpu(make_nvml: Any, read: Any) -> None:
    nvml = make_nvml()
    nvml.gpus[0].activity = (50.0, 20.0, 10.0)
    later = read(nvml)
    for _ in range(5):
        later()
        assert nvml.num_samples <= 2
    nvml.gpus[0].error = 15  # lost: what was known of it is dropped
    later()
    gc.collect()
    assert nvml.num_samples == 0
