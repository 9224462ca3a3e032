"""Runs programs under `ullage run`, each once a session, so that one run serves many tests."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.forking import client
from tests.phantom.forking.servers import start_servers

from ullage.log.model import Record
from ullage.log.reader import read_record

ROOT = Path(__file__).parent.parent.parent
PLACES = (ROOT / "tests" / "programs", ROOT / "tests" / "golden", ROOT / "examples")
TIMEOUT_S = 120
MAIN = "from ullage.cli import main; main()"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one `ullage run --json` left: its exit code, its output, its document, its snapshot."""

    exit_code: int
    stdout: str
    stderr: str
    directory: Path

    @property
    def document(self) -> dict[str, Any]:
        """The run document, from stdout."""
        try:
            found: dict[str, Any] = json.loads(self.stdout)
        except json.JSONDecodeError:
            pytest.fail(f"no document, exit code {self.exit_code}:\n{self.stderr}")
        return found

    @property
    def device(self) -> dict[str, Any]:
        """The first device of the document."""
        devices: list[dict[str, Any]] = self.document["devices"]
        assert devices, f"no device was used, exit code {self.exit_code}:\n{self.stderr}"
        return devices[0]

    @property
    def snapshot(self) -> dict[str, Any]:
        """torch's own snapshot, as its viewer would read it."""
        with (self.directory / "snapshot.pickle").open("rb") as file:
            found: dict[str, Any] = pickle.load(file)
        return found

    @property
    def record(self) -> Record:
        """What the watched process wrote down."""
        return read_record(self.directory / "snapshot.pickle")

    @property
    def printed(self) -> Any:
        """The program's last line of JSON (with --json its stdout goes to stderr)."""
        for line in reversed(self.stderr.splitlines()):
            if line.startswith(("{", "[")):
                with contextlib.suppress(json.JSONDecodeError):  # torch's warnings: "[W1121 ..."
                    return json.loads(line)
        pytest.fail(f"the program printed no JSON:\n{self.stderr}")

    @property
    def reads(self) -> dict[str, list[str]]:
        """The places of the assumptions that a value was read for: place -> what."""
        found: dict[str, list[str]] = {}
        for made in self.document["basis"]["allocator"]["assumptions"]:
            if made["where"]:
                found.setdefault(made["where"], []).append(made["what"])
        return found


RunProgram = Callable[..., Outcome]
SERVERS = pytest.StashKey[list[dict[str, Any]]]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """A process that runs tests on the phantom starts its servers before the first of them."""
    is_here = any(Path(__file__).parent in item.path.parents for item in session.items)
    if is_here and "ULLAGE_TEST_FRESH" not in os.environ and not session.config.option.collectonly:
        servers_of(session.config)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What the test starts, its fixtures too, is forked from servers, unless it is marked `fresh`,
    or ULLAGE_TEST_FRESH is set.
    """
    is_fresh = item.get_closest_marker("fresh") or "ULLAGE_TEST_FRESH" in os.environ
    client.install([] if is_fresh else servers_of(item.config))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """pytest itself starts nothing so."""
    client.install([])


def servers_of(config: pytest.Config) -> list[dict[str, Any]]:
    """Those of this process, started on first use."""
    if SERVERS not in config.stash:
        named = os.environ.get("ULLAGE_TEST_PYTHON", ".envs/torch-newest/bin/python")
        config.stash[SERVERS] = start_servers(ROOT / named, environment({}), config.add_cleanup)
    return config.stash[SERVERS]


def find_program(name: str) -> str:
    """The path of a program by its name within tests/programs, tests/golden or examples."""
    for place in PLACES:
        if (place / name).exists():
            return str(place / name)
    return name


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without what would steer ullage or the allocator."""
    mine = ("ULLAGE_", "PYTORCH_", "PYTEST_", "LD_PRELOAD")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    return kept | {"NO_COLOR": "1"} | dict(changes)


def execute(
    command: list[str], directory: Path, env: dict[str, str], timeout_s: int = TIMEOUT_S
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr; what hangs is ended with all that it started."""
    with subprocess.Popen(
        command, cwd=directory, env=env, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            pytest.fail(f"{command} did not end within {timeout_s} s")
    return process.returncode, stdout, stderr


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs of one call of pytest are, of all its processes under pytest-xdist."""
    own = tmp_path_factory.getbasetemp()
    directory = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "runs"
    directory.mkdir(exist_ok=True)
    return directory


def run_once(directory: Path, run: Callable[[], tuple[int, str, str]]) -> Outcome:
    """What a run left in its directory; another process that wants the same one waits for it."""
    directory.mkdir(exist_ok=True)
    with directory.with_name(f"{directory.name}.json").open("a+") as ended:
        fcntl.flock(ended, fcntl.LOCK_EX)
        ended.seek(0)
        text = ended.read()
        if not text:
            text = json.dumps(run())
            ended.write(text)
    return Outcome(*json.loads(text), directory)


def write_settings(directory: Path, verb: str, options: Sequence[str]) -> None:
    """Writes the lines "[VERB] name = value" among some options into a directory's ullage.toml."""
    mark = f"[{verb}] "
    lines = [word.removeprefix(mark) for word in options if word.startswith(mark)]
    if lines:
        (directory / "ullage.toml").write_text("\n".join((f"[{verb}]", *lines, "")))


@pytest.fixture(scope="session")
def run_program(thin_python: Path, runs: Path) -> RunProgram:
    """`run_program("peaks.py", "--flag", gpu="t4", options=("--steps", "2"), env=(("A", "b"),))`.

    Among the options, a line such as "[run] values = false" is written into ullage.toml. The same
    call runs once a session; another `turn` runs it again.
    """

    def run(
        *program: str,
        gpu: str = "h100-80gb",
        options: tuple[str, ...] = (),
        env: tuple[tuple[str, str], ...] = (),
        turn: int = 0,
        timeout_s: int = TIMEOUT_S,
    ) -> Outcome:
        key = repr((program, gpu, options, env, turn, bool(client.servers())))
        name = Path(program[0]).stem.strip("-") or "run"
        directory = runs / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        command = [
            sys.executable, "-c", MAIN, "run", "--gpu", gpu, "--json",
            "--python", str(thin_python), "--snapshot", str(directory / "snapshot.pickle"),
            *(word for word in options if not word.startswith("[run] ")),
            "--", find_program(program[0]), *program[1:],
        ]  # fmt: skip

        def start() -> tuple[int, str, str]:
            write_settings(directory, "run", options)
            return execute(command, directory, environment(dict(env)), timeout_s)

        return run_once(directory, start)

    return run


@pytest.fixture(scope="session")
def torch_version(thin_python: Path) -> str:
    """The version of the environment's torch, without importing it."""
    code = "from importlib.metadata import version; print(version('torch'))"
    command = [str(thin_python), "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
