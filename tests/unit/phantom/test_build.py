"""The build of the native library: what comes out, when it is skipped, how it fails."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from ullage.ground.native import build
from ullage.ground.native.libraries import LIBRARY_DIR
from ullage.players.phantom import elf

EM_AARCH64 = 183  # e_machine in the ELF header
ANSWER = """
__attribute__((visibility("default"))) int answer(void) { return %d; }
int hidden(void) { return 0; }
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A phantom of one function, with two stubs."""
    directory = tmp_path / "csrc"
    directory.mkdir()
    (directory / "answer.c").write_text(ANSWER % 42)
    (directory / "sonames.txt").write_text("# two\n\nlibfirst.so.1\nlibsecond.so.2\n")
    monkeypatch.setattr(build, "SOURCES", directory)
    return directory


def test_a_stub_leads_to_the_phantoms_functions(sources: Path, tmp_path: Path) -> None:
    out = build.build(tmp_path / "lib")
    stub = out / "libsecond.so.2"
    assert build.LIBRARY in elf.read_needed(stub)
    # In a process of its own: a library of the same soname may be loaded in this one.
    code = f"import ctypes; print(ctypes.CDLL({str(stub)!r}).answer())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "42\n"


def test_only_marked_functions_are_exported(sources: Path, tmp_path: Path) -> None:
    exports = elf.read_exports(build.build(tmp_path / "lib") / build.LIBRARY)
    assert "answer" in exports
    assert "hidden" not in exports


def test_a_current_build_is_left_alone(sources: Path, tmp_path: Path) -> None:
    library = build.build(tmp_path / "lib") / build.LIBRARY
    before = library.stat().st_mtime_ns
    build.build(tmp_path / "lib")
    assert library.stat().st_mtime_ns == before


@pytest.mark.slow
def test_a_changed_source_is_built_again(sources: Path, tmp_path: Path) -> None:
    library = build.build(tmp_path / "lib") / build.LIBRARY
    before = library.read_bytes()
    (sources / "answer.c").write_text(ANSWER % 43)
    build.build(tmp_path / "lib")
    assert library.read_bytes() != before


@pytest.mark.slow
def test_a_missing_stub_is_built_again(sources: Path, tmp_path: Path) -> None:
    stub = build.build(tmp_path / "lib") / "libfirst.so.1"
    stub.unlink()
    build.build(tmp_path / "lib")
    assert stub.exists()


@pytest.mark.slow(but=("int broken(\\n",))
@pytest.mark.parametrize(
    "fault", ["int broken(\n", "int gone(void); int f(void) { return gone(); }\n"]
)
def test_a_refused_source_leaves_the_last_good_build(
    sources: Path, tmp_path: Path, fault: str
) -> None:
    library = build.build(tmp_path / "lib") / build.LIBRARY
    before = library.read_bytes()
    (sources / "fault.c").write_text(fault)
    with pytest.raises(build.BuildError, match=r"fault"):
        build.build(tmp_path / "lib")
    assert library.read_bytes() == before
    assert not list((tmp_path / "lib").glob(".build-*"))


def test_no_compiler_names_the_package_that_brings_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(build.BuildError, match=r"pip install ziglang"):
        build.find_compiler()
    with pytest.raises(build.BuildError, match=r"pip install ziglang"):
        build.find_compiler(target="aarch64-linux-gnu.2.17")


def test_a_compiler_that_does_not_start_is_named(sources: Path, tmp_path: Path) -> None:
    with pytest.raises(build.BuildError, match=r"no-such-compiler"):
        build.build(tmp_path / "lib", cc="no-such-compiler")


def test_other_systems_are_told_what_to_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    with pytest.raises(build.BuildError, match=r"Darwin.*WSL2"):
        build.build(tmp_path / "lib")


def test_the_file_runs_before_ullage_is_installed(tmp_path: Path) -> None:
    command = [sys.executable, "-I", build.__file__, "--out", str(tmp_path), "--cc", "no-such-cc"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no-such-cc" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_build_for_aarch64_answers_the_same_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("the cross compiler is not installed: pip install ziglang")
    here = elf.read_exports(LIBRARY_DIR / build.LIBRARY)
    # What it exports does not depend on the optimization, which is most of the time.
    flags = tuple("-O0" if flag == "-O2" else flag for flag in build.COMPILE_FLAGS)
    monkeypatch.setattr(build, "COMPILE_FLAGS", flags)
    there = build.build(tmp_path / "there", target="aarch64-linux-gnu.2.17") / build.LIBRARY
    assert there.read_bytes()[18] == EM_AARCH64
    assert "cudaMalloc" in here
    assert elf.read_exports(there) == here


@pytest.mark.phantom
def test_there_is_a_stub_for_every_library_that_torch_needs(thin_python: Path) -> None:
    from ullage.players.phantom.torch_build import find_torch

    needed = find_torch(str(thin_python)).sonames
    assert "libcudart.so.13" in needed
    assert needed <= set(build.read_sonames())
