"""The GitHub action and the container file of docs/ci: their steps run, as far as they can here.

The runner and the container engine are left out, and `ullage env` finds its environment made.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from benchmarks.documents.environment import join_environments, search_path

from ullage.cli import cli

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "ci"
ACTION: dict[str, Any] = yaml.safe_load((FOLDER / "action.yml").read_text(encoding="utf-8"))
CONTAINER = (FOLDER / "Containerfile").read_text(encoding="utf-8")
CONFIG = """
[scenario.train]
command = "train.py"
gpu = "h100-80gb"
budget.max_reserved = "{budget}"
"""


def steps(inputs: dict[str, str]) -> list[tuple[str, dict[str, str]]]:
    """The commands of the action, each with its variables, as a runner fills them in."""

    def fill(text: str) -> str:
        return re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda match: inputs[match[1]], text)

    return [
        (step["run"], {name: fill(text) for name, text in step.get("env", {}).items()})
        for step in ACTION["runs"]["steps"]
        if "run" in step
    ]


@pytest.fixture
def project(thin_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a scenario, whose environment was kept from the run before."""
    join_environments(tmp_path / "thin", thin_python)
    (tmp_path / "thin" / "ullage-env.json").touch()
    shutil.copy(ROOT / "tests" / "programs" / "documents" / "encoder.py", tmp_path / "train.py")
    paths = [str(path) for path in search_path(tmp_path / "thin", thin_python)]
    monkeypatch.setenv("PATH", os.pathsep.join([*paths, os.environ["PATH"]]))
    return tmp_path


def run(
    command: str, directory: Path, variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("ULLAGE_")}
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", command], cwd=directory, env={**kept, **variables},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.phantom
@pytest.mark.nightly
@pytest.mark.parametrize(("budget", "code"), [("4GiB", 0), ("1GiB", 1)])
def test_the_action_checks_a_repository(project: Path, budget: str, code: int) -> None:
    (project / "ullage.toml").write_text(CONFIG.format(budget=budget), encoding="utf-8")
    inputs = {name: row["default"] for name, row in ACTION["inputs"].items()}
    *before, check = steps(inputs)
    for command, variables in before:
        if not command.startswith("pip install"):
            assert run(command, project, variables).returncode == 0, command
    done = run(check[0], project, check[1])
    assert done.returncode == code, done.stdout + done.stderr
    assert ("::error" in done.stdout) == (code == 1)
    # A page of each entry that changed; the action uploads them where the check fails.
    assert bool([*(project / "pages").glob("*.html")]) == (code == 1)


def test_the_action_has_each_input_that_it_uses_and_uses_each() -> None:
    text = (FOLDER / "action.yml").read_text(encoding="utf-8")
    assert {*re.findall(r"inputs\.(\w+)", text)} == {*ACTION["inputs"]}
    (guide,) = re.findall(
        r"^```yaml\n(.*?)^```", (ROOT / "docs/guide/setup.md").read_text("utf-8"), re.M | re.S
    )
    used = yaml.safe_load(guide)["jobs"]["memory"]["steps"][-1]
    assert {*used["with"]} <= {*ACTION["inputs"]}


def instructions() -> dict[str, list[str]]:
    """The arguments of each instruction of the container file, by its name."""
    found: dict[str, list[str]] = {}
    for line in CONTAINER.splitlines():
        name, _, rest = line.partition(" ")
        if name.isupper():
            found.setdefault(name, []).append(rest)
    return found


def test_what_the_container_runs_can_be_typed() -> None:
    rows = instructions()
    (entry,), (words,) = map(yaml.safe_load, rows["ENTRYPOINT"]), map(yaml.safe_load, rows["CMD"])
    calls = [shlex.split(row)[1:] for row in rows["RUN"] if row.startswith("ullage ")]
    assert entry == ["ullage"]
    for verb, *arguments in (*calls, words):
        with click.Context(cli) as context:
            command = cli.get_command(context, verb)
            assert command is not None
            command.make_context(verb, arguments)


@pytest.mark.phantom
@pytest.mark.nightly
def test_the_container_file_installs_what_its_command_finds(
    thin_python: Path, tmp_path: Path
) -> None:
    """In an empty environment in place of the image; the network gives what ullage needs."""
    rows = instructions()
    (package,) = rows["ARG"]
    assert package == "PACKAGE=ullage"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "image"], check=True)
    path = f"{tmp_path / 'image' / 'bin'}:{os.environ['PATH']}"
    install, make = rows["RUN"]
    assert run(install, tmp_path, {"PACKAGE": str(ROOT), "PATH": path}).returncode == 0
    assert make == "ullage env /opt/thin"
    words = [one.replace("/opt/thin/bin/python", str(thin_python))
             for one in yaml.safe_load(rows["CMD"][0])]  # fmt: skip
    done = run(shlex.join(["ullage", *words]), tmp_path, {"PATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "run     would start"
