"""The dependencies of a run besides the files that it reads, as one digest.

    digest_case(case, device, build, environment)

In it are the command and how it is run, the device, ullage and its phantom by their contents, the
interpreter, torch and every installed distribution, the files that the scenario names, and the
environment but for what tells one terminal or one CI job from the next.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from ullage.ground.errors import EnvironmentProblem
from ullage.ground.version import __version__
from ullage.players.inside.requests.requests import read_requests
from ullage.players.phantom.device import PhantomDevice
from ullage.players.phantom.http_requests import audio_of
from ullage.players.phantom.program import UserProgram
from ullage.players.phantom.torch_build import TorchBuild
from ullage.verbs.check.gate.inputs import digest_file, digest_files
from ullage.verbs.check.gate.scenario import Case

# Of a terminal, a session, a shell, a CI job: they come and go, and no program's memory depends on
# them. One that does can be given in the scenario's `env`.
_PASSING = frozenset(
    {"_", "SHLVL", "PWD", "OLDPWD", "COLUMNS", "LINES", "TERM", "COLORTERM", "NO_COLOR",
     "FORCE_COLOR", "LS_COLORS", "DISPLAY", "WINDOWID", "INVOCATION_ID", "JOURNAL_STREAM", "PS1",
     "HOSTNAME", "PYTEST_CURRENT_TEST", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "TMUX", "TMUX_PANE"}
)  # fmt: skip
_PASSING_PREFIXES = (
    *("GITHUB_", "RUNNER_", "ACTIONS_", "CI_", "GITLAB_", "BUILDKITE_", "CIRCLE_", "TRAVIS_"),
    *("JENKINS_", "BUILD_", "SSH_", "XDG_SESSION_", "DBUS_", "TERM_", "VSCODE_", "GIT_", "VTE_"),
)

_ASK = "import json, sys; print(json.dumps([sys.version, sys.executable, sys.path]))"


def digest_case(case: Case, program: UserProgram, device: PhantomDevice, build: TorchBuild) -> str:
    """A digest of everything that is known before a case is run.

    Raises:
        EnvironmentProblem: its interpreter does not run.
    """
    scenario = case.scenario
    environment = dict(os.environ) | dict(scenario.env)
    known = {
        "case": repr((scenario.command, case.gpu, sorted(scenario.env.items()), scenario.replay)),
        "how": repr((
            scenario.num_devices, scenario.world_size, scenario.local_world_size, scenario.ranks,
            scenario.alloc_conf, scenario.steps, scenario.real_init, scenario.dummy_weights,
            scenario.values, scenario.assume,
        )),
        "directory": str(scenario.directory),
        "program": repr((program.python, program.arguments)),
        "device": repr(device),
        "torch": repr((build.version, build.cuda, str(build.directory))),
        "ullage": _digest_ullage(),
        "interpreter": _digest_interpreter(program.python, str(scenario.directory),
                                           environment.get("PYTHONPATH", "")),
        "inputs": list(digest_files(scenario.directory, scenario.inputs)),
        "requests": dict(_requests(case)),
        "environment": dict(sorted(_lasting(environment))),
    }  # fmt: skip
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:32]


def _requests(case: Case) -> Iterator[tuple[str, str]]:
    """The files with the requests, which the program itself may not read."""
    if case.scenario.replay is not None:
        path = case.scenario.directory / case.scenario.replay.file
        requests = read_requests(path, case.scenario.replay.limit)
        for file in {
            path,
            *(file for request in requests for file in audio_of(request, path.parent)),
        }:
            yield str(file), digest_file(str(file))


def _lasting(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in environment.items():
        if name not in _PASSING and not name.startswith(_PASSING_PREFIXES):
            yield name, value


@functools.cache
def _digest_ullage() -> str:
    """Every module of this ullage, and the phantom library."""
    package = Path(__file__).parents[3]
    digest = hashlib.sha256(__version__.encode())
    for path in sorted((*package.rglob("*.py"), *package.glob("ground/native/lib/*.so*"))):
        digest.update(str(path.relative_to(package)).encode() + b"\0")
        digest.update(path.read_bytes())
    return digest.hexdigest()


@functools.cache
def _digest_interpreter(python: str, directory: str, module_path: str) -> str:
    """The interpreter and the distributions installed for it, as it reports when run there."""
    try:
        answer = subprocess.run(
            [python, "-c", _ASK], capture_output=True, text=True, timeout=60, check=True,
            cwd=directory, env={**os.environ, "PYTHONPATH": module_path},
        )  # fmt: skip
        version, executable, paths = json.loads(answer.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise EnvironmentProblem(
            f"{python!r} does not run as a Python interpreter ({error}); expected a path such as "
            "DIR/bin/python"
        ) from None
    digest = hashlib.sha256(json.dumps([version, os.path.realpath(executable), paths]).encode())
    for path in paths:
        for installed in sorted(_installed(Path(path or directory))):
            digest.update(installed.name.encode() + b"\0")
            record = installed / "RECORD" if installed.is_dir() else installed
            if record.is_file():
                digest.update(record.read_bytes())
    return digest.hexdigest()


def _installed(directory: Path) -> Iterator[Path]:
    """The metadata of installed distributions, and the files that extend the module path."""
    for pattern in ("*.dist-info", "*.egg-info", "*.egg-link", "*.pth"):
        yield from directory.glob(pattern)
