"""`ullage ui` from the command line: its address, and what it says where it cannot serve."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ullage.cli import run_cli
from ullage.verbs.ui import server

MAIN = "from ullage.cli import main; main()"


def test_without_the_extra_it_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server, "_NEEDED", ("starlette_that_is_not_there",))
    assert run_cli(["ui"]) == 2
    assert capsys.readouterr().err == (
        "ullage: `ullage ui` needs starlette_that_is_not_there, which is not installed; "
        "install it with: pip install 'ullage[ui]'\n"
    )


def test_a_port_that_is_taken_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("starlette", reason="needs the extra ullage[ui]")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run_cli(["ui", "--no-browser", "--port", str(port)]) == 2
    assert f"127.0.0.1:{port} cannot be listened on" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["-1", "65536"])
def test_what_is_no_port_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["ui", "--no-browser", "--port", port]) == 2
    assert "port" in capsys.readouterr().err


def test_it_serves_this_machine_alone_until_it_is_interrupted(tmp_path: Path) -> None:
    pytest.importorskip("starlette", reason="needs the extra ullage[ui]")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", MAIN, "ui", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[1]
        host, _, path = address.removeprefix("http://").partition("/")
        assert host.startswith("127.0.0.1:")
        connection = http.client.HTTPConnection(host, timeout=20)
        connection.request("GET", f"/{path}")
        answer = connection.getresponse()
        connection.close()
        assert answer.status == 200 and answer.headers["server"] is None
        port = int(host.partition(":")[2])
        with pytest.raises(OSError), socket.create_connection(("127.0.0.2", port), timeout=5):
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert list(tmp_path.iterdir()) == []
