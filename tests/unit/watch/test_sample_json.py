"""The JSON form of a sample: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.ground.protocol.job import Job, JobDevice, StepPeak
from ullage.ground.protocol.plain import document_of
from ullage.operate.watch.sample import (
    DeviceSample,
    MigInstance,
    Note,
    ProcessKind,
    ProcessSample,
    Sample,
)
from ullage.operate.watch.sample_json import sample_from_line, sample_to_line

PROCESS = ProcessSample(7, ProcessKind.COMPUTE, 2**30, "train.py", "ada", sm_frac=0.5)
DEVICE = DeviceSample(
    0,
    "GPU-0",
    "NVIDIA H100",
    mig=MigInstance("GPU-1", 1, 0),
    total_bytes=80 * 2**30,
    power_w=50.5,
    throttle_reasons=frozenset({"sw_power_cap", "hw_slowdown"}),
    processes=(PROCESS, replace(PROCESS, pid=8, kind=ProcessKind.MPS, used_bytes=None)),
)
JOB = Job(
    7, 1.5, 2.5, "train.py", (JobDevice(0, "GPU-0", *range(9), 80 * 2**30),),
    step_peaks=(StepPeak(0, 1, 2, 0.25), StepPeak(1, 1, 2, 0.5)),
)  # fmt: skip
SAMPLE = Sample(12.25, "node-1", (DEVICE,), (JOB,), (Note("power_w", "not supported", (0,)),))


def test_a_sample_is_one_line_and_comes_back() -> None:
    line = sample_to_line(SAMPLE)
    assert "\n" not in line
    assert sample_from_line(line) == SAMPLE


def test_a_line_is_the_document(make_samples: Any) -> None:
    """The texts that are kept of earlier samples are those of this one."""
    for sample in make_samples(40):
        assert json.loads(sample_to_line(sample)) == document_of(sample)


def test_what_is_unknown_is_null() -> None:
    (device,) = document_of(SAMPLE)["devices"]
    assert device["temperature_c"] is None
    assert device["throttle_reasons"] == ["hw_slowdown", "sw_power_cap"]


@given(
    st.text(),
    st.floats(-1e12, 1e12),
    st.none() | st.integers(0, 2**62),
)
def test_any_text_and_number_comes_back(text: str, number: float, count: int | None) -> None:
    device = replace(DEVICE, name=text, power_w=number, used_bytes=count)
    sample = replace(SAMPLE, host=text, devices=(device,))
    assert sample_from_line(sample_to_line(sample)) == sample


def test_a_newer_writers_fields_are_ignored() -> None:
    document = document_of(SAMPLE) | {"weather": "fine"}
    assert sample_from_line(json.dumps(document)) == SAMPLE


def set_in(document: dict[str, Any], path: list[str | int], value: object) -> None:
    """Replaces a value deep in a document."""
    *parents, last = path
    target: Any = document
    for step in parents:
        target = target[step]
    target[last] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["schema"], "ullage.watch/2", "schema is 'ullage.watch/2', expected 'ullage.watch/1'"),
        (["host"], 5, "sample.host is 5; expected a text"),
        (["devices"], {}, r"sample.devices is {}; expected a list"),
        (["devices", 0], [], r"sample.devices\[0\] is \[\]; expected an object"),
        (["jobs", 0, "step_peaks", 0], [1, 2], r"step_peaks\[0\] is \[1, 2\]; expected a list of"),
        (["devices", 0, "total_bytes"], 1.5, "total_bytes is 1.5; expected a whole number"),
        (["devices", 0, "total_bytes"], True, "total_bytes is true; expected a whole number"),
        (["devices", 0, "power_w"], "50", "power_w is '50'; expected a number"),
        (["devices", 0, "is_lost"], 0, "is_lost is 0; expected true or false"),
        (["devices", 0, "processes", 0, "kind"], "video", "kind is 'video'; expected one of"),
    ],
)
def test_a_wrong_value_is_named(path: list[str | int], value: object, message: str) -> None:
    document = document_of(SAMPLE)
    set_in(document, path, value)
    with pytest.raises(ValueError, match=message):
        sample_from_line(json.dumps(document))


def test_a_field_that_is_missing_is_named() -> None:
    document = document_of(SAMPLE)
    del document["devices"][0]["uuid"]
    with pytest.raises(ValueError, match=r"sample.devices\[0\].uuid is missing"):
        sample_from_line(json.dumps(document))


@pytest.mark.parametrize("line", ["", "[1]", "5", "{", "[" * 200 + "]" * 200, '{"schema":NaN}'])
def test_what_is_no_sample_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        sample_from_line(line)
