"""`ullage front` from the command line: it serves this machine until it is told to end."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from ullage.cli import main, run_cli
from ullage.operate.front.proxy import server

MAIN = "from ullage.cli import main; main()"
SETTINGS = """
[front]
listen = "127.0.0.1:0"
[front.engine.a]
url = "http://127.0.0.1:1"
models = "m"
cache = "1GiB"
token_bytes = 1024
[front.tenant.me]
"""


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    path = tmp_path / "ullage.toml"
    path.write_text(SETTINGS)
    return path


def test_without_the_extra_it_says_how_to_install_it(
    configuration: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server, "_NEEDED", ("httpx_that_is_not_there",))
    assert run_cli(["front", "--config", str(configuration)]) == 2
    assert capsys.readouterr().err == (
        "ullage: `ullage front` needs httpx_that_is_not_there, which is not installed; "
        "install it with: pip install 'ullage[front]'\n"
    )


def test_without_a_table_it_says_what_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ullage.toml").write_text("")
    assert run_cli(["front", "--config", str(tmp_path / "ullage.toml")]) == 2
    assert "there is no table [front]" in capsys.readouterr().err


@contextmanager
def running(configuration: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A front and its address."""
    code = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {MAIN}"
    command = [sys.executable, "-c", code, "front", "--config", str(configuration)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            line = next(line for line in process.stdout if line.startswith("Serving "))
            yield process, line.removeprefix("Serving http://").strip()
        finally:
            process.terminate()


def resident_mib(process: subprocess.Popen[str]) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def test_the_memory_of_large_bodies_goes_back_to_the_system(configuration: Path) -> None:
    def post(number: int) -> int:
        body = f'{{"model": "m", "prompt": "{"x" * (2 + number % 3) * 2**20}", "zeal": 1}}'
        with closing(http.client.HTTPConnection(host, timeout=60)) as connection:
            connection.request(
                "POST", "/v1/completions", body, {"content-type": "application/json"}
            )
            return connection.getresponse().status

    with running(configuration) as (process, host), ThreadPoolExecutor(4) as clients:
        assert post(0) == 400  # what it takes once is there
        before_mib = resident_mib(process)
        assert {*clients.map(post, range(24))} == {400}
        limit_s = time.monotonic() + 20  # the last are let go after their answers
        while (rest_mib := resident_mib(process) - before_mib) > 8 and time.monotonic() < limit_s:
            time.sleep(0.1)
        assert rest_mib < 8


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_interrupted(configuration: Path, number: int) -> None:
    with running(configuration) as (process, host):
        assert host.startswith("127.0.0.1:")
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        assert "does not read its configuration again" in process.stderr.readline()
        connection = http.client.HTTPConnection(host, timeout=60)
        connection.request("GET", "/v1/models")
        answer = connection.getresponse()
        assert answer.status == 200 and b'"id": "m"' in answer.read()
        assert answer.headers["server"] is None
        connection.close()
        process.send_signal(number)
        assert process.wait(60) == 0
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize("verb", ["front", "ui", "watch"])
def test_what_lives_on_looks_for_cycles_as_often_as_python(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With the bound of short commands, cycles of past bursts of streams grew by 13 MiB an hour.
    asked: list[int] = []
    monkeypatch.setattr("gc.set_threshold", asked.append)
    monkeypatch.setattr("gc.freeze", lambda: None)
    monkeypatch.setattr("ullage.cli.run_cli", lambda _: 0)
    for arguments in ([verb], ["gpus"]):
        monkeypatch.setattr("sys.argv", ["ullage", *arguments])
        with pytest.raises(SystemExit):
            main()
        assert bool(asked) == (arguments != [verb])
