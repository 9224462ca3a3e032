"""`ullage watch --listen` as it is typed, beside the phantom's NVML."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ullage.cli import run_cli
from ullage.ground.native.libraries import LIBRARY_DIR
from ullage.ground.protocol.job import Job, JobDevice, jobs_directory, publish_job
from ullage.ground.protocol.variables import DEVICE, NUM_DEVICES, PHANTOM
from ullage.players.phantom.device import choose_device

GIB = 2**30
UUID = "GPU-756c6c61-6765-2070-6861-6e746f6d0000"  # of the phantom's first GPU


@pytest.fixture
def machine(tmp_path: Any) -> dict[str, str]:
    """The variables of a machine with two GPUs and a job on the first."""
    variables = {
        PHANTOM: "1",
        NUM_DEVICES: "2",
        DEVICE: choose_device(gpu="h100-80gb").environment_text(),
        "LD_LIBRARY_PATH": str(LIBRARY_DIR),
        "XDG_RUNTIME_DIR": str(tmp_path),
    }
    part = JobDevice(
        0, UUID, 20 * GIB, 26 * GIB, 20 * GIB, GIB, 30 * GIB, 31 * GIB, 0, 0, 0, 80 * GIB
    )
    job = Job(os.getpid(), time.time(), time.time(), "train.py", (part,), 0, 8, "forward", 7, 0.5)
    publish_job(job, jobs_directory(variables, make=True))
    return variables


def url_of(process: subprocess.Popen[str]) -> str:
    """Where it says that it serves."""
    assert process.stderr is not None
    match = re.fullmatch(r"Serving (http://127\.0\.0\.1:\d+/metrics)\n", process.stderr.readline())
    assert match is not None
    return match[1]


def scrape(url: str) -> str:
    """The page, as soon as there is a sample."""
    for _ in range(200):
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
        time.sleep(0.05)
    raise AssertionError("there is no sample")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("words", [(), ("--alerts",), ("--json",)])
def test_it_serves_until_it_is_stopped(
    place: Any, machine: dict[str, str], words: tuple[str, ...], number: signal.Signals
) -> None:
    with place.start("watch", "--listen", "0", "--interval", "0.1", *words, **machine) as process:
        url = url_of(process)
        process.send_signal(signal.SIGHUP)
        assert "does not read its configuration again" in str(process.stderr.readline())
        families = {x.name: x.samples for x in text_string_to_metric_families(scrape(url))}
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    used = families["DCGM_FI_DEV_FB_TOTAL"]
    assert [x.labels["gpu"] for x in used] == ["0", "1"]
    (allocated,) = families["ullage_allocated_bytes"]
    assert allocated.value == 20 * GIB
    assert (allocated.labels["pid"], allocated.labels["UUID"]) == (str(os.getpid()), UUID)
    assert "DCGM_FI_DEV_SHUTDOWN_TEMP" not in families  # the phantom does not support it
    lines = [json.loads(line) for line in stdout.splitlines()] if words == ("--json",) else []
    assert bool(lines) == (words == ("--json",))
    port = int(url.rpartition(":")[2].removesuffix("/metrics"))
    with socket.socket() as listener:  # the port is free again
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()


def test_a_port_that_is_taken(place: Any, machine: dict[str, str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = place.run("watch", "--listen", str(port), **machine)
    assert done.returncode == 2
    assert f"127.0.0.1:{port} cannot be listened on (Address already in use" in done.stderr
    assert "give --listen another address or port" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "0.0.0.0:0"], "can be reached from other machines"),
        (["--listen", "x"], "give [HOST:]PORT"),
        (["--listen", "0", "--once"], "does not go with --once or --replay"),
        (["--listen", "0", "--replay", "a.jsonl"], "does not go with --once or --replay"),
    ],
)
def test_wrong_use(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["watch", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('key = "a.pem"', "certificate and key go together"),
        ('token_file = "none"', "cannot be read"),
        ('tokens = "none"', "has no option 'tokens'; did you mean 'token_file'?"),
    ],
)
def test_what_the_section_says_of_listening_is_read(
    line: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    alert = "[watch.alert.memory]\nenabled = false\n"
    (tmp_path / "ullage.toml").write_text(f"[watch]\n{line}\n{alert}")
    assert run_cli(["watch", "--listen", "0"]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
