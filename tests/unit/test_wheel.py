"""The wheel, as the type checkers of its users see it."""

from __future__ import annotations

import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from benchmarks.wheels import read_libraries, without_compilers

from ullage.ground.native.libraries import LIBRARY_DIR

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


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_libraries_of_a_wheel_are_of_its_machine(tmp_path: Path, machine: str) -> None:
    wheel = tmp_path / f"ullage-0-py3-none-manylinux_2_17_{machine}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(
            LIBRARY_DIR / "libullage_reader.so", "ullage/ground/native/lib/libullage_reader.so"
        )
    if machine != platform.machine():
        with pytest.raises(ValueError, match=r"found libraries of .*; expected .* alone"):
            read_libraries(wheel, tmp_path)
        return
    libraries = read_libraries(wheel, tmp_path)
    assert (libraries.machine, len(libraries.paths)) == (machine, 1)
    assert "libc.so.6" in libraries.needed and libraries.glibc >= (2, 2)


def test_no_compiler_is_left_on_the_path_and_everything_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("gcc-12", "cc", "x86_64-linux-gnu-gcc", "clang++", "zig", "sed", "gccmakedep"):
        (programs / name).touch()
    monkeypatch.setenv("PATH", str(programs))
    kept = {path.name for path in without_compilers(tmp_path / "links").iterdir()}
    assert kept == {"sed", "gccmakedep"}
