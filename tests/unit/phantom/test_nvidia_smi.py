"""nvidia-smi on a phantom GPU: what scripts ask of it, and what it refuses."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from ullage.players.phantom.device import choose_device
from ullage.players.phantom.launch import install_nvidia_smi

MIB = 2**20
QUERY = "--query-gpu=index,name,memory.total,memory.used,utilization.gpu,driver_version"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    directory = install_nvidia_smi(tmp_path / "run", sys.executable)
    return {
        "PATH": f"{directory}:{os.environ['PATH']}",
        "PYTHONPATH": "/no/such/place",
        "ULLAGE_PHANTOM": "1",
        "ULLAGE_NUM_DEVICES": "2",
        "ULLAGE_DEVICE": choose_device("rtx-4090").environment_text(),
        "ULLAGE_RUN_DIR": str(tmp_path / "run"),
    }


def ask(environment: dict[str, str], *options: str, code: int = 0) -> str:
    """What it prints; what it complains of, where it ends with another code than 0."""
    done = subprocess.run(
        ["nvidia-smi", *options],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def use(environment: dict[str, str], pid: int, ticks: int, num_bytes: int) -> None:
    """The file of a process that uses memory of the second GPU (csrc/machine/published.h)."""
    unused = struct.pack("=Qiiii", 0, 0, -1, -1, 0)
    used = struct.pack("=Qiiii", num_bytes, 1, -1, -1, 0)
    body = struct.pack("=IIQ", 1, pid, ticks) + unused + used + 62 * unused
    (Path(environment["ULLAGE_RUN_DIR"]) / f"{pid}.use").write_bytes(body)


def test_a_table_names_the_gpu_and_the_driver(environment: dict[str, str]) -> None:
    table = ask(environment)
    assert "NVIDIA GeForce RTX 4090" in table and "Driver Version: 580.00.00" in table
    assert "0MiB / 24" in table and "No running processes found" in table


def test_gpus_are_listed_with_their_uuids(environment: dict[str, str]) -> None:
    lines = ask(environment, "-L").splitlines()
    assert [line.partition(" (UUID: GPU-")[0] for line in lines] == [
        "GPU 0: NVIDIA GeForce RTX 4090",
        "GPU 1: NVIDIA GeForce RTX 4090",
    ]


def test_a_query_gives_a_header_and_units(environment: dict[str, str]) -> None:
    head, first, _second = ask(environment, QUERY, "--format=csv").splitlines()
    assert head == (
        "index, name, memory.total [MiB], memory.used [MiB], utilization.gpu [%], driver_version"
    )
    assert first.startswith("0, NVIDIA GeForce RTX 4090, 24")
    assert first.endswith(" MiB, 0 MiB, [N/A], 580.00.00")


def test_memory_in_use_is_that_of_the_processes_that_live(environment: dict[str, str]) -> None:
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    use(environment, os.getpid(), ticks, 500 * MIB)
    use(environment, os.getppid(), 1, 900 * MIB)  # another process had this number
    fields = "--query-gpu=memory.used,memory.free,memory.total"
    rows = ask(environment, fields, "--format=csv,noheader,nounits").splitlines()
    used, free, total = map(int, rows[1].split(", "))
    assert (rows[0].split(", ")[0], used, free + used) == ("0", 500, total)
    apps = ask(environment, "--query-compute-apps=pid,used_memory", "--format=csv,noheader")
    assert apps.splitlines() == [f"{os.getpid()}, 500 MiB"]
    assert f"{os.getpid()}" in ask(environment, "-i", "1")
    details = ask(environment, "-q", "-d", "MEMORY")
    assert re.search(r"Used +: 500 MiB", details)


def test_what_a_gpu_that_is_not_there_has_not_is_not_made_up(environment: dict[str, str]) -> None:
    fields = "--query-gpu=name,serial,clocks.sm,temperature.gpu,power.draw,pstate"
    lines = ask(environment, fields, "--format=csv,noheader", "-i", "0").splitlines()
    assert lines == ["NVIDIA GeForce RTX 4090, [N/A], [N/A], [N/A], [N/A], [N/A]"]


def test_the_highest_clocks_are_those_of_the_catalogue(environment: dict[str, str]) -> None:
    fields = "--query-gpu=clocks.max.sm,clocks.max.gr,clocks.max.mem"
    head, first, _ = ask(environment, fields, "--format=csv").splitlines()
    assert head == "clocks.max.sm [MHz], clocks.max.gr [MHz], clocks.max.mem [MHz]"
    device = choose_device("rtx-4090")
    graphics, memory = (
        f"{khz // 1000} MHz" for khz in (device.gpu.clock_khz, device.gpu.memory_clock_khz)
    )
    assert first == f"{graphics}, {graphics}, {memory}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--query-gpu=shoe_size", "--format=csv"), 'Field "shoe_size" is not a valid field'),
        (("--query-gpu=name",), "--format=csv is needed"),
        (("topo", "-m"), "unrecognized arguments: topo"),
        (("-i", "7"), "No devices were found for '7'; there are 2"),
        (("--gpu-reset",), "--gpu-reset"),
    ],
)
def test_what_it_does_not_do_is_an_error(
    environment: dict[str, str], options: tuple[str, ...], message: str
) -> None:
    said = ask(environment, *options, code=2)
    assert message in said and "the GPU is simulated" in said


def test_outside_a_run_there_is_no_gpu(environment: dict[str, str]) -> None:
    assert "No devices" in ask(environment | {"ULLAGE_PHANTOM": "0"}, code=6)
