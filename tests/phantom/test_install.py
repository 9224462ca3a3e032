"""Installed as users install it: a wheel or a source distribution in an environment of its own, and
programs in another.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ullage.ground.errors import EnvironmentProblem
from ullage.ground.version import __version__
from ullage.players.phantom.torch_build import find_torch

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "programs" / "peaks.py"
TIMEOUT_S = 600


def call(*words: str | Path, directory: Path) -> str:
    """What a command prints to stdout; nothing of this process's environment steers ullage."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ULLAGE_")}
    done = subprocess.run(
        list(map(str, words)), cwd=directory, env=kept, text=True, capture_output=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_venv(directory: Path) -> Path:
    """The interpreter of an empty virtual environment."""
    call(sys.executable, "-m", "venv", directory, directory=directory.parent)
    return directory / "bin" / "python"


def run_peaks(ullage: Path, python: Path, directory: Path) -> int:
    """Runs a program with an installed ullage; its peak."""
    words = ("run", "--gpu", "l4", "--json", "--python", python, "--", PROGRAM)
    document = json.loads(call(ullage, *words, directory=directory))
    assert (document["verdict"], document["ullage"]) == ("fits", __version__)
    peak: int = document["devices"][0]["peak_allocated_bytes"]
    return peak


@pytest.fixture(scope="module")
def own_peak(thin_python: Path, tmp_path_factory: pytest.TempPathFactory) -> int:
    """The program's peak with this ullage."""
    directory = tmp_path_factory.mktemp("own")
    code = "from ullage.cli import main; main()"
    (directory / "ullage").write_text(f"#!{sys.executable}\n{code}\n")
    (directory / "ullage").chmod(0o755)
    return run_peaks(directory / "ullage", thin_python, directory)


@pytest.mark.phantom
@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_what_is_built_runs_in_an_empty_environment(
    thin_python: Path, own_peak: int, tmp_path: Path, kind: str
) -> None:
    builder = make_venv(tmp_path / "builder")
    call(builder, "-m", "pip", "install", "--quiet", "hatchling", "ziglang", directory=tmp_path)
    call(builder, "-m", "hatchling", "build", "-t", kind, "-d", tmp_path / "dist", directory=ROOT)
    (built,) = (tmp_path / "dist").iterdir()
    python = make_venv(tmp_path / "empty")
    call(python, "-m", "pip", "install", "--quiet", built, directory=tmp_path)
    assert run_peaks(tmp_path / "empty" / "bin" / "ullage", thin_python, tmp_path) == own_peak


@pytest.mark.slow
@pytest.mark.phantom
def test_an_environment_without_pip_that_finds_torch_by_a_path_file_works(
    thin_python: Path, own_peak: int, tmp_path: Path
) -> None:
    code = "import sysconfig; print(sysconfig.get_path('purelib')); import sys; print(sys.version)"
    packages, version = call(thin_python, "-c", code, directory=tmp_path).splitlines()[:2]
    if version != sys.version.splitlines()[0]:
        pytest.skip("torch was built for another Python than the one that runs the tests")
    call(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env", directory=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    purelib = call(python, "-c", code, directory=tmp_path).splitlines()[0]
    (Path(purelib) / "other.pth").write_text(packages + "\n")
    words = ("-c", "from ullage.cli import main; main()", "run", "--gpu", "l4", "--json")
    run = call(sys.executable, *words, "--python", python, "--", PROGRAM, directory=tmp_path)
    assert json.loads(run)["devices"][0]["peak_allocated_bytes"] == own_peak


def test_a_python_that_is_too_old_is_refused(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho '[[3, 9], \"/somewhere/torch/__init__.py\"]'\n")
    python.chmod(0o755)
    with pytest.raises(EnvironmentProblem, match=re.escape("is Python 3.9, and a program needs")):
        find_torch(str(python))


def test_the_environment_that_is_active_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    expected = re.escape(f"add `--python {tmp_path}/bin/python`")
    with pytest.raises(EnvironmentProblem, match=expected):
        find_torch(sys.executable)


def test_what_runs_in_the_programs_interpreter_is_python_3_10() -> None:
    package = ROOT / "src" / "ullage"
    inside = ("bootstrap.py", "fork.py", "prefork.py", "site/sitecustomize.py")
    files = [package / "__init__.py", package / "ground" / "version.py"]
    files += [package / "players" / "phantom" / name for name in inside]
    inside = ("ground/native", "ground/programs", "ground/protocol", "players/inside")
    for folder in (*inside, "act/techniques"):
        files += (package / folder).rglob("*.py")
    assert len(files) > 100
    for path in files:
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 10))
