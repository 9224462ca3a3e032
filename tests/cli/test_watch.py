"""`ullage watch` as it is typed, beside the phantom's NVML and on recordings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ullage.ground.native.libraries import LIBRARY_DIR
from ullage.ground.protocol.job import Job, JobDevice, jobs_directory, publish_job
from ullage.ground.protocol.variables import DEVICE, NUM_DEVICES, PHANTOM
from ullage.operate.watch.recording import Recording
from ullage.operate.watch.sample import DeviceSample, Sample
from ullage.players.phantom.device import choose_device
from ullage.verbs.watch.function import read_samples

NUM_GPUS = 8
GIB = 2**30
UUID = "GPU-756c6c61-6765-2070-6861-6e746f6d0003"  # of the phantom's fourth GPU


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """The variables of a machine with eight GPUs on which nothing runs."""
    return {
        PHANTOM: "1",
        NUM_DEVICES: str(NUM_GPUS),
        DEVICE: choose_device(gpu="h100-80gb").environment_text(),
        "LD_LIBRARY_PATH": str(LIBRARY_DIR),
        "XDG_RUNTIME_DIR": str(tmp_path),
    }


def publish(machine: dict[str, str]) -> Job:
    """This process as a job on the fourth GPU."""
    part = JobDevice(
        0, UUID, 20 * GIB, 26 * GIB, 20 * GIB, GIB, 30 * GIB, 31 * GIB, 0, 0, 0, 80 * GIB
    )
    job = Job(os.getpid(), time.time(), time.time(), "train.py", (part,), 0, 8, "forward", 7, 0.5)
    publish_job(job, jobs_directory(machine, make=True))
    return job


def test_once_prints_every_gpu_and_the_job(place: Any, machine: dict[str, str]) -> None:
    publish(machine)
    done = place.run("watch", "--once", **machine)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    gpus = [line for line in lines if line.startswith("GPU ")]
    assert len(gpus) == NUM_GPUS
    assert all("NVIDIA H100 80GB HBM3" in line and "°C" not in line for line in gpus)
    below = lines[lines.index(gpus[3]) : lines.index(gpus[4])]
    assert any(f"train.py  {os.getpid()}  rank 0 of 8  forward  step 7, 500 ms" in x for x in below)
    assert any("20.0 GiB allocated, 26.0 reserved (1.0 fragmented)" in line for line in below)
    assert any("temperature_c" in line for line in lines)  # why it is unknown


def test_json_is_the_document_with_the_outlook(place: Any, machine: dict[str, str]) -> None:
    job = publish(machine)
    done = place.run("watch", "--once", "--json", **machine)
    document = json.loads(done.stdout)
    assert document["schema"] == "ullage.watch/1"
    total = choose_device(gpu="h100-80gb").gpu.total_bytes
    assert [device["total_bytes"] for device in document["devices"]] == [total] * NUM_GPUS
    assert document["devices"][0]["power_w"] is None  # of a phantom nobody knows it
    assert document["sharing"] == ["none"] * NUM_GPUS and document["alerts"] == []
    assert document["devices"][0]["ecc_corrected"] is None
    fields = {note["field"]: note["devices"] for note in document["notes"]}
    assert fields["ecc_corrected"] == list(range(NUM_GPUS))
    (outlook,) = document["outlooks"]
    assert (outlook["pid"], outlook["uuid"]) == (job.pid, UUID)
    assert outlook["limit_bytes"] == 26 * GIB + document["devices"][3]["free_bytes"]
    assert outlook["headroom_bytes"] == outlook["limit_bytes"] - 20 * GIB
    assert outlook["full_in_s"] is None


def wait_for_lines(path: Path, count: int) -> None:
    """Waits until a file has so many lines."""
    for _ in range(600):
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"{path.name} has not got {count} lines")


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_recording_is_kept_until_it_is_interrupted(
    place: Any, machine: dict[str, str], words: tuple[str, ...]
) -> None:
    path = place.directory / "night.jsonl"
    process = place.start("watch", "--record", path.name, "--interval", "0.1", *words, **machine)
    with process:
        wait_for_lines(path, 3)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Wrote night.jsonl" in stderr
    samples = list(read_samples(path))
    assert len(samples) >= 3 and all(len(sample.devices) == NUM_GPUS for sample in samples)
    lines = [json.loads(line) for line in stdout.splitlines()]
    assert bool(lines) == bool(words)
    assert all(line["schema"] == "ullage.watch/1" for line in lines)


def test_after_kill_9_the_recording_opens(place: Any, machine: dict[str, str]) -> None:
    path = place.directory / "night.jsonl"
    with place.start("watch", "--record", path.name, "--interval", "0.1", **machine) as process:
        wait_for_lines(path, 2)
        process.kill()
    assert len(list(read_samples(path))) >= 2


def test_a_recording_is_replayed_without_a_driver(
    place: Any, machine: dict[str, str], make_recording: Callable[[Path, int], None]
) -> None:
    path = place.directory / "night.jsonl"
    make_recording(path, 5)
    text = place.run("watch", "--once", "--replay", path.name)
    assert text.returncode == 0 and "node-1" in text.stdout and "mem" in text.stdout
    wide = place.run("watch", "--once", "--replay", path.name, COLUMNS="200")
    assert 80 < max(map(len, wide.stdout.splitlines())) <= 200
    lines = place.run("watch", "--json", "--replay", path.name).stdout.splitlines()
    assert [json.loads(line)["time_s"] for line in lines] == [0.0, 1.0, 2.0, 3.0, 4.0]
    last = json.loads(place.run("watch", "--json", "--once", "--replay", path.name).stdout)
    assert last["time_s"] == 4.0
    ascii_text = place.run("watch", "--once", "--replay", path.name, PYTHONIOENCODING="ascii")
    assert ascii_text.returncode == 0 and ascii_text.stdout.isascii()


def test_alerts_are_in_the_text_and_in_the_document(place: Any) -> None:
    """GIVEN a recording at whose end a GPU is lost WHEN it is shown THEN so is the alert."""
    gpu = DeviceSample(0, "GPU-0", "NVIDIA H100 80GB HBM3", total_bytes=80 * GIB, used_bytes=GIB)
    lost = DeviceSample(0, "GPU-0", "NVIDIA H100 80GB HBM3", is_lost=True)
    with Recording(place.directory / "night.jsonl", force=False) as recording:
        for second in range(4):
            recording.add(Sample(1000.0 + second, "node-1", (lost if second > 1 else gpu,)))
    text = place.run("watch", "--once", "--replay", "night.jsonl").stdout
    (row,) = [line for line in text.splitlines() if "since" in line]
    assert row.startswith("critical gpu-lost  GPU 0  since ") and len(row) <= 80
    done = place.run("watch", "--once", "--json", "--replay", "night.jsonl")
    (alert,) = json.loads(done.stdout)["alerts"]
    assert (alert["rule"], alert["gpu"], alert["since_s"]) == ("gpu-lost", 0, 1002.0)
    lines = place.run("watch", "--json", "--replay", "night.jsonl").stdout.splitlines()
    assert [len(json.loads(line)["alerts"]) for line in lines] == [0, 0, 1, 1]
    (place.directory / "rules.toml").write_text("[watch.alert.gpu-lost]\nenabled = false\n")
    quiet = ("--json", "--once", "--config", "rules.toml", "--replay", "night.jsonl")
    assert json.loads(place.run("watch", *quiet).stdout)["alerts"] == []


def test_without_a_driver_the_remedy_is_named(place: Any) -> None:
    message = place.refuse("watch", "--once")
    assert "libnvidia-ml" in message and "--replay" in message


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--interval", "0.01"), "0.01 s is not possible"),
        (("--interval", "nan"), "nan s is not possible"),
        (("--replay", "none.jsonl"), "'none.jsonl' cannot be read"),
        (("--replay", "train.py"), "line 1 of 'train.py' is not a sample"),
        (("--replay", "train.py", "--record", "x"), "does not go with --replay"),
        (("--config", "none.toml", "--replay", "none.jsonl"), "none.toml"),
    ],
)
def test_wrong_use_is_refused(place: Any, words: tuple[str, ...], part: str) -> None:
    assert part in place.refuse("watch", "--once", *words)


def test_another_file_is_not_overwritten(place: Any, machine: dict[str, str]) -> None:
    done = place.run("watch", "--once", "--record", "train.py", **machine)
    assert done.returncode == 2 and "exists" in done.stderr


def test_a_reader_that_ends_is_no_error(place: Any, machine: dict[str, str]) -> None:
    options = {"stdout": subprocess.PIPE}
    process = place.start("watch", "--json", "--interval", "0.1", options=options, **machine)
    with process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == 0
