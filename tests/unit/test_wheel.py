"""The wheel, as the type checkers of its users see it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """\
import ullage

run = ullage.run(["train.py"], gpu="h100-80gb")
peak_bytes: int = run.peak_allocated_bytes
wrong: str = run.peak_allocated_bytes
"""


def call(*words: str | Path, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, words)), cwd=directory, text=True, capture_output=True, check=False
    )


@pytest.mark.slow
def test_a_type_checker_has_the_types_of_the_wheel(tmp_path: Path) -> None:
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path)
    built = call(*pip, ROOT, directory=tmp_path)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("ullage-*.whl")
    call(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env", directory=tmp_path)
    (packages,) = tmp_path.glob("env/lib/python3.*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    python = tmp_path / "env" / "bin" / "python"
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "program.py")
    checked = call(*mypy, directory=tmp_path)
    errors = [line for line in checked.stdout.splitlines() if "error:" in line]
    assert len(errors) == 1 and errors[0].startswith("program.py:5: "), checked.stdout
