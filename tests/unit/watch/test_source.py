"""Samples come at their pace, and do not queue up."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from ullage.ground.errors import DeviceError, EnvironmentProblem
from ullage.operate.watch.nvml.library import open_nvml
from ullage.operate.watch.sample import Sample
from ullage.operate.watch.source import samples


class Ticks:
    """A source that says when it was read, and takes its time."""

    def __init__(self, clock: Any, durations: list[float]) -> None:
        self.clock, self.durations = clock, durations

    def read(self) -> Sample:
        now_s = self.clock.now_s
        self.clock.now_s += self.durations.pop(0)
        return Sample(now_s, "host", ())

    def close(self) -> None:
        return


def test_moments_that_were_missed_are_left_out(clock: Any) -> None:
    def sleep(seconds: float) -> None:
        assert seconds >= 0
        clock.now_s += seconds

    start = clock.now_s
    source = Ticks(clock, [0.1, 0.1, 2.7, 0.1, 0.1])
    stream = samples(source, 1.0, clock=clock, sleep=sleep)
    moments = [next(stream).time_s - start for _ in range(5)]
    assert moments == pytest.approx([0, 1, 2, 5, 6])


def test_without_the_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'ullage\[watch\]'"):
        open_nvml()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (12, "there is no NVML"),
        (9, "the NVIDIA driver is not loaded"),
        (4, "no permission"),
        (18, "different versions"),
        (999, "NVML error 999"),
    ],
)
def test_why_nvml_does_not_open_is_said(
    code: int, message: str, monkeypatch: pytest.MonkeyPatch, make_nvml: Any
) -> None:
    nvml = make_nvml()
    nvml.error = code
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    with pytest.raises(DeviceError, match=message):
        open_nvml()
