"""The page: in both formats, by Prometheus's own parsers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from ullage.ground.printable import printable
from ullage.ground.protocol.job import Job
from ullage.operate.doors.metric import Type
from ullage.operate.watch.alerts.engine import Engine
from ullage.operate.watch.alerts.rules_file import DEFAULTS
from ullage.operate.watch.exporter.exposition import METRICS, Exposition
from ullage.operate.watch.sample import Sample

GIB = 2**30
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
Labels = frozenset[tuple[str, str]]


def render(sample: Sample, accept: str = "", *, with_names: bool = False) -> str:
    """The page of a sample."""
    exposition = Exposition(with_names=with_names)
    exposition.publish(sample)
    page = exposition.page(accept)
    assert page is not None
    return page.body.decode()


def values_of(text: str, accept: str = "") -> dict[str, dict[Labels, float]]:
    """The values of a page by metric and labels; no labels come twice."""
    parse = parse_openmetrics if accept else parse_text
    values: dict[str, dict[Labels, float]] = {}
    for family in parse(text):
        for point in family.samples:
            labels = frozenset(point.labels.items())
            assert labels not in values.setdefault(point.name, {})
            values[point.name][labels] = point.value
    return values


def pick(values: dict[Labels, float], **labels: str) -> float:
    """The value of the only point with these labels."""
    (value,) = [value for key, value in values.items() if set(labels.items()) <= key]
    return value


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_both_formats_have_the_same_values(full_sample: Sample, accept: str) -> None:
    values = values_of(render(full_sample, accept), accept)
    gpu = {"gpu": "0", "UUID": "GPU-0", "modelName": "NVIDIA H100 80GB HBM3"}
    assert pick(values["DCGM_FI_DEV_FB_USED"], **gpu, Hostname="gpu-host") == 50 * 1024
    assert pick(values["DCGM_FI_DEV_FB_FREE"], **gpu) == 29 * 1024
    assert pick(values["DCGM_FI_DEV_GPU_UTIL"], **gpu) == 62
    assert pick(values["DCGM_FI_DEV_GPU_TEMP"], **gpu) == 68
    assert pick(values["DCGM_FI_PROF_SM_ACTIVE"], **gpu) == 0.41
    assert pick(values["DCGM_FI_PROF_SM_OCCUPANCY"], **gpu) == 0.3
    assert pick(values["DCGM_FI_PROF_DRAM_ACTIVE"], **gpu) == 0.33
    # The third process is a client of MPS, the others are not.
    assert pick(values["ullage_gpu_sharing"], **gpu, mode="mps+time-slicing") == 1
    assert pick(values["ullage_gpu_sharing"], gpu="1", mode="mig") == 1
    assert pick(values["DCGM_FI_DEV_POWER_USAGE"], **gpu) == 528.5
    assert pick(values["DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"], **gpu) == 5
    assert pick(values["ullage_throttling"], **gpu, reason="sw_power_cap") == 1
    assert pick(values["ullage_throttling"], **gpu, reason="hw_slowdown") == 0
    assert pick(values["ullage_sample_timestamp_seconds"]) == 200.5
    assert pick(values["ullage_exporter_info"], driver_version="580.00.00") == 1
    job = gpu | {"pid": "11", "rank": "2", "user": "ada", "pod_uid": "pod-1", "hpc_job": "7"}
    job |= {"pod": "train-0", "namespace": "research", "container": "main", "slurm_step": "0"}
    assert pick(values["ullage_allocated_bytes"], **job) == 20 * GIB
    assert pick(values["ullage_fragmented_bytes"], **job) == 2 * GIB
    assert pick(values["ullage_alloc_retries_total"], **job) == 3
    assert pick(values["ullage_headroom_bytes"], **job) == 26 * GIB
    assert pick(values["ullage_growth_bytes_per_step"], **job) == pytest.approx(GIB)
    assert pick(values["ullage_forecast_seconds"], **job) == pytest.approx(26 * 0.5)
    assert pick(values["ullage_step"], pid="11") == 20


def test_every_metric_is_on_the_page_of_a_full_sample(full_sample: Sample) -> None:
    values = values_of(render(full_sample))
    assert values.keys() == {metric.name for metric in METRICS} - {"ullage_alert"}
    counters = [metric.name for metric in METRICS if metric.type is Type.COUNTER]
    assert counters and all(name.endswith("_total") for name in counters)
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_two_jobs_on_a_gpu_are_told_apart(full_sample: Sample) -> None:
    values = values_of(render(full_sample))
    assert pick(values["ullage_allocated_bytes"], gpu="0", pid="11", rank="2") == 20 * GIB
    assert pick(values["ullage_allocated_bytes"], gpu="0", pid="12", rank="3") == 20 * GIB
    assert pick(values["ullage_process_memory_bytes"], pid="11") == 27 * GIB
    assert pick(values["ullage_process_memory_bytes"], pid="12") == 10 * GIB
    assert pick(values["ullage_process_sm_ratio"], pid="12") == 0.4
    # The steps of one of them grow.
    assert [dict(key)["pid"] for key in values["ullage_forecast_seconds"]] == ["11"]


def test_a_mig_device_has_its_gpus_labels(full_sample: Sample) -> None:
    values = values_of(render(full_sample))
    assert pick(values["DCGM_FI_DEV_FB_USED"], UUID="GPU-1", GPU_I_ID="3", compute_instance="0")
    utilised = [dict(labels) for labels in values["DCGM_FI_DEV_GPU_UTIL"]]
    assert all("GPU_I_ID" not in labels for labels in utilised)


def test_a_job_on_a_gpu_that_is_not_here(full_sample: Sample) -> None:
    values = values_of(render(full_sample))
    assert pick(values["ullage_allocated_bytes"], pid="14", UUID="GPU-9", job_device="1") == 1
    assert not [key for key in values["ullage_device_frees_total"] if ("pid", "14") in key]
    assert not [key for key in values["ullage_headroom_bytes"] if ("pid", "14") in key]


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_what_is_unknown_is_absent(unknown_sample: Sample, accept: str) -> None:
    values = values_of(render(unknown_sample, accept), accept)
    assert values.keys() == {
        "ullage_exporter_info", "ullage_sample_timestamp_seconds", "ullage_gpu_lost",
        "ullage_gpu_sharing",
    }  # fmt: skip
    assert {dict(key)["gpu"]: value for key, value in values["ullage_gpu_lost"].items()} == {
        "0": 1,
        "1": 0,
    }


def test_names_are_off_unless_asked_for(full_sample: Sample) -> None:
    text = render(full_sample)
    assert "train.py" not in text and "say" not in text and "program=" not in text
    values = values_of(render(full_sample, with_names=True))
    assert pick(values["ullage_process_memory_bytes"], pid="11", program="train.py")
    assert pick(values["ullage_allocated_bytes"], pid="11", program="train.py")


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_names_of_any_characters_can_be_read_again(full_sample: Sample, accept: str) -> None:
    name = 'a "b"\\n\n{x="1"} 7 \udcff é'
    (device, *rest) = full_sample.devices
    process = replace((device.processes or ())[1], name=name, user=name)
    sample = replace(full_sample, devices=(replace(device, processes=(process,)), *rest), jobs=())
    values = values_of(render(sample, accept, with_names=True), accept)
    ((labels, _),) = values["ullage_process_memory_bytes"].items()
    assert dict(labels)["program"] == dict(labels)["user"] == printable(name)


def test_a_pid_that_is_listed_twice_is_exported_once(full_sample: Sample) -> None:
    (device, *rest) = full_sample.devices
    processes = (device.processes or ())[:1] * 2
    sample = replace(full_sample, devices=(replace(device, processes=processes), *rest))
    values = values_of(render(sample))  # fails if labels come twice
    assert pick(values["ullage_process_memory_bytes"], pid="11") == 27 * GIB


def test_a_counter_that_jumps_back_is_exported_as_it_is(full_sample: Sample) -> None:
    """Prometheus takes a lower value for a restart; nothing is added up here."""
    exposition = Exposition()
    seen = []
    for count in (7, 2):
        jobs = tuple(with_retries(job, count) for job in full_sample.jobs)
        exposition.publish(replace(full_sample, jobs=jobs))
        page = exposition.page("")
        assert page is not None
        seen.append(pick(values_of(page.body.decode())["ullage_alloc_retries_total"], pid="11"))
    assert seen == [7, 2]


def with_retries(job: Job, count: int) -> Job:
    """The job with that many retries on each device."""
    return replace(job, devices=tuple(replace(x, num_alloc_retries=count) for x in job.devices))


def lost_and_back(sample: Sample) -> Iterator[Sample]:
    """The second GPU is lost at the second sample, and back at the third."""
    gpus = sample.devices
    lost = (gpus[0], replace(gpus[1], is_lost=True), gpus[2])
    for turn, devices in enumerate((gpus, lost, gpus)):
        yield replace(sample, time_s=sample.time_s + turn, devices=devices)


def test_alerts_are_there_while_they_are_raised(full_sample: Sample) -> None:
    exposition = Exposition()
    engine = Engine([rule for rule in DEFAULTS if rule.name == "gpu-lost"])
    seen = []
    for sample in lost_and_back(full_sample):
        exposition.publish(sample)
        for event in engine.take(sample):
            exposition.note(event)
        page = exposition.page("")
        assert page is not None
        seen.append(values_of(page.body.decode()).get("ullage_alert", {}))
    labels = {"rule": "gpu-lost", "severity": "critical", "gpu": "1", "UUID": "GPU-1"}
    assert seen[0] == seen[2] == {}
    assert pick(seen[1], **labels) == 1


def test_a_page_is_made_once_for_a_sample(full_sample: Sample) -> None:
    exposition = Exposition()
    assert exposition.page("") is None
    exposition.publish(full_sample)
    page = exposition.page("")
    assert exposition.page("") is page
    exposition.publish(replace(full_sample, time_s=201.5))
    later = exposition.page("")
    assert later is not None and page is not None and later.body != page.body


def test_whatever_a_client_asks_for_there_are_two_pages(full_sample: Sample) -> None:
    exposition = Exposition()
    exposition.publish(full_sample)
    plain, openmetrics = exposition.page(""), exposition.page(OPENMETRICS)
    assert plain is not None and openmetrics is not None and plain.body != openmetrics.body
    kind = "application/openmetrics-text"
    for accept in (kind, f"{kind};version=x", f"{kind};version=99.0;escaping=dots,*/*;q=0.1"):
        assert exposition.page(accept) is openmetrics
    for accept in (
        "*/*",
        "text/plain;version=x",
        "text/plain;version=1.0.0;escaping=values",
        ";=,",
    ):
        assert exposition.page(accept) is plain
