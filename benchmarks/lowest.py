"""Runs the unit tests with the lowest versions that pyproject.toml allows, and on other Pythons.

    python -m benchmarks.lowest                             # then python3.12 and python3.13
    python -m benchmarks.lowest --interpreter python3.14    # then that one

pip takes the newest version that it may, so a lower bound that does not hold is seen by nobody who
installs today. Here the bounds of pyproject.toml are pins: `click>=8.2` becomes `click==8.2`. A
bound is therefore a version that exists. Other interpreters get the newest versions, as the oldest
have no wheels for them; one that is not on this machine is skipped, and named.

Each environment is made anew in .envs/. Ends with exit code 1 where one of them fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
OTHERS = ("python3.12", "python3.13")


def lowest_pins(requirements: Iterable[str]) -> list[str]:
    """A constraint for each requirement that has a lower bound: `click>=8.2` gives `click==8.2`."""
    return sorted(
        {
            f"{requirement.name}=={bound.version}"
            for requirement in map(Requirement, requirements)
            for bound in requirement.specifier
            if bound.operator == ">="
        }
    )


def find_interpreter(name: str) -> str | None:
    """An interpreter on PATH or among pyenv's, whose shims on PATH start the chosen ones alone."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    places = [shutil.which(name), *map(str, pyenv.glob(f"versions/*/bin/{name}"))]
    for place in filter(None, places):
        if subprocess.run([place, "-c", ""], capture_output=True, check=False).returncode == 0:
            return place
    return None


def passes(interpreter: str, directory: Path, pins: list[str]) -> bool:
    """Makes an environment with ullage and its extras, and runs the unit tests there."""
    # A Python's own pip may be years old, and searches for versions that go together for long.
    subprocess.run([interpreter, "-m", "venv", "--clear", "--upgrade-deps", directory], check=True)
    constraints = directory / "constraints.txt"
    constraints.write_text("".join(f"{pin}\n" for pin in pins), encoding="utf-8")
    python = str(directory / "bin" / "python")
    # An old library calls what a newer one beside it, which has no bound here, has deprecated.
    warnings = ["-W", "ignore::DeprecationWarning"] if pins else []
    for command in (
        ["pip", "install", "--quiet", "--constraint", str(constraints), "--editable", ".[dev]"],
        ["pytest", "-q", "--numprocesses", "auto", "--dist", "loadfile", *warnings, "tests/unit"],
    ):
        if subprocess.run([python, "-m", *command], cwd=ROOT, check=False).returncode:
            return False
    return True


def main() -> None:
    """Try the lowest versions, then the other interpreters."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--interpreter", action="append", help=f"another Python; default: {', '.join(OTHERS)}"
    )
    args = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    pins = lowest_pins([*project["dependencies"], *chain.from_iterable(extras)])
    tried = {"the lowest versions": passes(sys.executable, ROOT / ".envs" / "lowest", pins)}
    for name in args.interpreter or OTHERS:
        interpreter = find_interpreter(name)
        if interpreter is None:
            print(f"skipped {name}: it is neither on PATH nor among pyenv's versions")
            continue
        tried[name] = passes(interpreter, ROOT / ".envs" / Path(name).name, [])
    for what, has_passed in tried.items():
        print(f"{what}: {'passed' if has_passed else 'failed'}")
    sys.exit(0 if all(tried.values()) else 1)


if __name__ == "__main__":
    main()
