"""A place to run `ullage` in, under an interpreter with a made-up torch.

That torch is an empty library with a version beside it: enough for `ullage run` to start a program
that does not import it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ullage.ground.native.build import BuildError, find_compiler
from ullage.operate.watch.recording import Recording
from ullage.operate.watch.sample import DeviceSample, Sample

# A shell has what it starts in its background ignore Ctrl-C, and so would all that is started here.
HEARS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
MAIN = "from ullage.cli import main; main()"
PROGRAM = "import pathlib, sys\npathlib.Path(sys.argv[1]).touch()\n"
TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Place:
    """A directory to run in, an interpreter with a made-up torch, and a place for what it marks."""

    directory: Path
    python: Path
    marker: Path
    temporary: Path

    def run(self, *words: str, main: str = MAIN, **env: str) -> subprocess.CompletedProcess[str]:
        """`ullage WORDS`, as typed in the directory."""
        with self.start(*words, main=main, **env) as process:
            try:
                stdout, stderr = process.communicate(timeout=TIMEOUT_S)
            finally:
                process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def start(
        self, *words: str, main: str = MAIN, options: dict[str, Any] | None = None, **env: str
    ) -> subprocess.Popen[str]:
        """The same, not waited for; `options` are those of Popen."""
        mine = ("ULLAGE_", "PYTORCH_", "LD_PRELOAD")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
        kept |= {"TMPDIR": str(self.temporary), "NO_COLOR": "1", "COLUMNS": "80"}
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            [sys.executable, "-c", HEARS + main.lstrip(), *words],
            cwd=self.directory, text=True, start_new_session=True, env=kept | env,
            **(streams | (options or {})),
        )  # fmt: skip

    def refuse(self, *words: str, main: str = MAIN) -> str:
        """The one message with which `ullage WORDS` is refused."""
        before = self.files()
        done = self.run(*words, main=main)
        assert done.returncode == 2, done.stderr
        assert done.stdout == ""
        assert done.stderr.startswith("ullage: ") and done.stderr.count("\n") == 1, done.stderr
        assert not self.marker.exists(), "the program was started"
        assert self.files() == before
        return done.stderr

    def files(self) -> set[str]:
        """All that lies in the directory, and what a run keeps for itself."""
        return {str(path) for place in (self.directory, self.temporary) for path in place.iterdir()}


def _compile_library(path: Path, source: str, *options: str) -> None:
    try:
        compiler = find_compiler()
    except BuildError as error:
        pytest.skip(str(error))
    command = [*compiler, "-shared", "-fPIC", "-nostdlib", "-x", "c", "-", "-o", str(path)]
    subprocess.run([*command, "-x", "none", *options], input=source, text=True, check=True)


def _make_python(directory: Path, version: str, cuda: str | None) -> Path:
    """An interpreter that would import a torch which consists of its version alone."""
    torch = directory / "site" / "torch"
    (torch / "lib").mkdir(parents=True)
    (torch / "__init__.py").touch()
    (torch / "version.py").write_text(f"__version__ = '{version}'\ncuda = {cuda!r}\n")
    info = directory / "site" / f"torch-{version.partition('+')[0]}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: torch\nVersion: {version}\n")
    python = directory / "python"
    path = f"{directory / 'site'}${{PYTHONPATH:+:$PYTHONPATH}}"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{path}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python


@pytest.fixture(scope="session")
def cuda_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cuda")
    python = _make_python(directory, "2.15.0+cu132", "13.2")
    _compile_library(directory / "site/torch/lib/libtorch_cuda.so", "int nothing;")
    return python


@pytest.fixture
def place(cuda_python: Path, tmp_path: Path) -> Iterator[Place]:
    directory, temporary = tmp_path / "here", tmp_path / "temporary"
    directory.mkdir()
    temporary.mkdir()
    (directory / "train.py").write_text(PROGRAM)
    yield Place(directory, cuda_python, tmp_path / "marker", temporary)


@pytest.fixture
def make_python() -> Callable[[Path, str, str | None], Path]:
    """`make_python(directory, version, cuda)`: an interpreter with a made-up torch."""
    return _make_python


@pytest.fixture
def compile_library() -> Callable[..., None]:
    """`compile_library(path, source, *options)`: a shared library made of C."""
    return _compile_library


@pytest.fixture
def make_recording() -> Callable[[Path, int], None]:
    """`make_recording(path, 5)`: of five seconds of a GPU whose memory grows."""

    def make(path: Path, count: int) -> None:
        with Recording(path, force=False) as recording:
            for turn in range(count):
                device = DeviceSample(
                    0, "GPU-0", "NVIDIA H100 80GB HBM3", total_bytes=80 * 2**30,
                    used_bytes=(turn + 1) * 2**30, free_bytes=(79 - turn) * 2**30,
                )  # fmt: skip
                recording.add(Sample(float(turn), "node-1", (device,)))

    return make
