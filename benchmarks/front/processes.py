"""Starts stub engines and a front as programs of their own."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO
from urllib.request import ProxyHandler, build_opener

TOKEN_BYTES = 1024
BLOCK = 16


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def program(
    arguments: Sequence[str], port: int, *, python: str = sys.executable, patience_s: float = 60,
    log: IO[bytes] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:  # fmt: skip
    """A Python program that listens on a port, from then on until the end."""
    errors = subprocess.DEVNULL if python != sys.executable else log
    process = subprocess.Popen([python, *arguments], stdout=subprocess.DEVNULL, stderr=errors)
    try:
        limit_s = time.monotonic() + patience_s
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None or time.monotonic() > limit_s:
                raise RuntimeError(f"{' '.join(arguments)} does not listen")
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def stub(blocks: int, step_s: float, sequences: int = 256, *more: str) -> Iterator[int]:
    """A stub engine; gives its port."""
    port = free_port()
    with program([*stub_arguments(port, blocks, step_s, sequences)[1:], *more], port):
        yield port


def stub_arguments(port: int, blocks: int, step_s: float, sequences: int) -> list[str]:
    """The command of a stub engine."""
    return [
        sys.executable, "-m", "benchmarks.front.stub_engine", "--port", str(port),
        "--blocks", str(blocks), "--step", str(step_s), "--sequences", str(sequences),
    ]  # fmt: skip


def read_metric(port: int, name: str) -> dict[str, float]:
    """A metric's values, by the text of its labels."""
    opener = build_opener(ProxyHandler({}))
    text = opener.open(f"http://127.0.0.1:{port}/metrics", timeout=20).read().decode()
    lines = [line for line in text.splitlines() if line.startswith(name)]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def write_front(
    folder: Path, engines: Sequence[int], blocks: int, tenants: Sequence[str],
    more: str = "characters_per_token = 4", *, max_requests: int = 256, engine_more: str = "",
    model: str = "stub",
) -> int:  # fmt: skip
    """Writes a configuration; gives the port. Each tenant's key is its name eight times."""
    port = free_port()
    for tenant in tenants:
        (folder / tenant).write_text(tenant * 8)
    lines = [f'[front]\nlisten = "127.0.0.1:{port}"\n{more}']
    lines += [
        f'[front.engine.e{engine}]\nurl = "http://127.0.0.1:{engine}"\nmodels = "{model}"\n'
        f'cache = "{blocks * BLOCK * TOKEN_BYTES}B"\ntoken_bytes = {TOKEN_BYTES}\n'
        f"max_requests = {max_requests}\n{engine_more}"
        for engine in engines
    ]
    lines += [f'[front.tenant.{tenant}]\nkey_file = "{tenant}"\n' for tenant in tenants]
    (folder / "ullage.toml").write_text("\n".join(lines))
    return port


@contextlib.contextmanager
def front(
    folder: Path, port: int, log: IO[bytes] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """`ullage front` with the configuration of a folder."""
    code = "from ullage.cli import main; main()"
    arguments = ["-c", code, "front", "--config", str(folder / "ullage.toml")]
    with program(arguments, port, log=log) as process:
        yield process


def resident_kib(process: subprocess.Popen[bytes]) -> int:
    """Memory of a process."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0])


def processor_s(process: subprocess.Popen[bytes]) -> float:
    """Processor seconds of a process: of all its threads."""
    files = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


@contextlib.contextmanager
def vllm_router(
    folder: Path, engine: int, *options: str
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """vllm-router of an environment with one worker; gives its port."""
    port = free_port()
    arguments = ["--worker-urls", f"http://127.0.0.1:{engine}", "--port", str(port)]
    arguments += ["--prometheus-port", str(free_port()), *options]
    command = str(folder / "bin" / "vllm-router")
    with program(arguments, port, python=command) as process:
        yield port, process
