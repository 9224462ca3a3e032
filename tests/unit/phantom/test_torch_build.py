"""A torch is read without being imported, from libraries built here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ullage.ground.errors import EnvironmentProblem
from ullage.players.phantom import torch_build
from ullage.players.phantom.elf import read_exports, read_imports, read_needed
from ullage.players.phantom.torch_build import (
    SYMBOL_PREFIXES,
    TorchBuild,
    check_torch,
    find_torch,
    find_version,
)

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler")

PINS = """Metadata-Version: 2.4
Name: torch
Requires-Dist: cuda-toolkit[cublas,cudart]==13.0.2; platform_system == "Linux"
Requires-Dist: nvidia-cudnn-cu13==9.19.0.56; platform_system == "Linux"
Requires-Dist: nvidia-nccl-cu13==2.28.9; platform_system == "Linux"
"""
OLD_PINS = """Name: torch
Requires-Dist: nvidia-cuda-runtime-cu12 (==12.4.127) ; platform_system == "Linux"
Requires-Dist: nvidia-cublas-cu12 (==12.4.5.8) ; platform_system == "Linux"
Requires-Dist: nvidia-cudnn-cu12 (==9.1.0.70) ; platform_system == "Linux"
"""


def compile_library(path: Path, source: str, *options: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [
        str(COMPILER),
        "-shared",
        "-fPIC",
        "-x",
        "c",
        "-",
        "-o",
        str(path),
        "-x",
        "none",
        *options,
    ]
    subprocess.run(command, input=source, text=True, check=True)
    return path


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of installed packages with a torch that calls three functions of NVIDIA's."""
    stub = compile_library(
        tmp_path / "stubs" / "libcudart.so.13",
        "int cudaMalloc(void) { return 0; } int ncclSend(void) { return 0; }",
        "-Wl,-soname,libcudart.so.13",
    )
    source = """
    int cudaMalloc(void); int ncclSend(void); int cungqr_(void);
    __attribute__((weak)) int cudaFuture(void);
    int use(void) { return cudaMalloc() + ncclSend() + cungqr_() + (cudaFuture ? 1 : 0); }
    """
    torch = tmp_path / "site" / "torch"
    for name in ("libtorch_cuda.so", "libc10_cuda.so"):
        compile_library(torch / "lib" / name, source, str(stub))
    (torch / "version.py").write_text(
        "__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n"
    )
    info = tmp_path / "site" / "torch-2.11.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(PINS)
    monkeypatch.setattr(torch_build, "_own_torch", lambda: str(torch / "__init__.py"))
    return tmp_path / "site"


def found_torch() -> TorchBuild:
    import sys

    return find_torch(sys.executable)


def make_phantom(directory: Path, source: str) -> Path:
    compile_library(directory / "libullage_phantom.so", source)
    (directory / "libcudart.so.13").touch()
    return directory


@needs_compiler
def test_a_library_says_what_it_needs_imports_and_exports(tmp_path: Path) -> None:
    source = """
    int cuInit(int); int inner_(void) { return cuInit(0); }
    static int hidden(void) { return 1; } int (*p)(void) = hidden;
    """
    stub = compile_library(tmp_path / "cudart", "int cuInit;", "-Wl,-soname,libcudart.so.13")
    for style in ("gnu", "sysv", "both"):
        options = (f"-Wl,--hash-style={style}", "-nostdlib", str(stub))
        path = compile_library(tmp_path / f"{style}.so", source, *options)
        assert read_imports(path, SYMBOL_PREFIXES) == {"cuInit"}
        assert {"inner_", "p"} <= read_exports(path)
        assert not {"cuInit", "hidden"} & read_exports(path)
        assert read_needed(path) == ("libcudart.so.13",)


@needs_compiler
@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm to compare with")
def test_exports_are_those_that_nm_lists(tmp_path: Path) -> None:
    source = "".join(f"int cuda{n}(void) {{ return {n}; }}" for n in range(200))
    path = compile_library(tmp_path / "many.so", source)
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(path)], capture_output=True, text=True, check=True
    )
    assert read_exports(path) == {line.split()[2] for line in listed.stdout.splitlines()}


@needs_compiler
def test_a_torch_is_read_from_its_files(site: Path) -> None:
    build = found_torch()
    assert (build.version, build.cuda) == ("2.11.0+cu130", "13.0")
    assert build.sonames == {"libcudart.so.13"}
    assert build.imports == {"cudaMalloc", "ncclSend"}  # neither LAPACK's nor a weak one
    assert build.libraries_text() == "cudart=13000;nvrtc=13000;cublas=130100;cudnn=91900;nccl=22809"


@needs_compiler
def test_pins_of_single_libraries_are_read_too(site: Path) -> None:
    (site / "torch" / "version.py").write_text("__version__ = '2.11.0'\ncuda: str = '12.4'\n")
    (site / "torch-2.11.0.dist-info" / "METADATA").write_text(OLD_PINS)
    assert found_torch().libraries_text() == "cudart=12040;nvrtc=12040;cublas=120405;cudnn=90100"


@needs_compiler
def test_a_phantom_that_answers_everything_is_accepted(site: Path, tmp_path: Path) -> None:
    phantom = make_phantom(
        tmp_path / "lib", "int cudaMalloc(void) {return 0;} int ncclSend(void) {return 0;}"
    )
    build = check_torch(found_torch(), phantom)
    assert [path.name for path in build.preloaded(phantom)] == ["libcudart.so.13"]


@needs_compiler
def test_a_function_that_nobody_answers_is_named_with_the_version(
    site: Path, tmp_path: Path
) -> None:
    phantom = make_phantom(tmp_path / "lib", "int cudaMalloc(void) { return 0; }")
    with pytest.raises(EnvironmentProblem, match=r"torch 2\.11\.0\+cu130 calls ncclSend, which"):
        check_torch(found_torch(), phantom)


@needs_compiler
def test_a_torch_that_nobody_tried_is_one_sentence(site: Path, tmp_path: Path) -> None:
    """A made-up 2.16 with a function that no torch before it calls."""
    (site / "torch" / "version.py").write_text(
        "__version__ = '2.16.0+cu134'\ncuda: Optional[str] = '13.4'\n"
    )
    stub = compile_library(
        tmp_path / "stubs" / "libcudart.so.13",
        "int cudaMallocTiered(void) { return 0; }",
        "-Wl,-soname,libcudart.so.13",
    )
    source = "int cudaMallocTiered(void); int use(void) { return cudaMallocTiered(); }"
    compile_library(site / "torch" / "lib" / "libc10_cuda.so", source, str(stub))
    phantom = make_phantom(
        tmp_path / "lib", "int cudaMalloc(void) {return 0;} int ncclSend(void) {return 0;}"
    )
    with pytest.raises(EnvironmentProblem) as refused:
        check_torch(found_torch(), phantom)
    assert str(refused.value) == (
        "torch 2.16.0+cu134 calls cudaMallocTiered, which this ullage does not answer; use a torch "
        "that it knows (`ullage env DIR` installs one), or a newer ullage"
    )


@needs_compiler
def test_a_library_that_nobody_answers_for_is_named(site: Path, tmp_path: Path) -> None:
    phantom = make_phantom(tmp_path / "lib", "int cudaMalloc(void) { return 0; }")
    (phantom / "libcudart.so.13").unlink()
    with pytest.raises(EnvironmentProblem, match=r"needs libcudart\.so\.13, for which"):
        check_torch(found_torch(), phantom)


@needs_compiler
@pytest.mark.parametrize("version", ["2.5.1+cu124", "1.13.1+cu117", "2.5.0a0+gitabc"])
def test_a_torch_that_is_too_old_is_refused_in_a_sentence(
    site: Path, tmp_path: Path, version: str
) -> None:
    (site / "torch" / "version.py").write_text(f"__version__ = '{version}'\ncuda: str = '12.4'\n")
    with pytest.raises(EnvironmentProblem, match=r"older than 2\.6, .*ullage env DIR") as caught:
        check_torch(found_torch(), tmp_path)
    assert version in str(caught.value)


@needs_compiler
@pytest.mark.parametrize("version", ["2.6.0+cu124", "2.10.1", "3.0.0.dev20270101+cu140"])
def test_a_newer_torch_is_judged_by_what_it_calls(site: Path, tmp_path: Path, version: str) -> None:
    (site / "torch" / "version.py").write_text(f"__version__ = '{version}'\ncuda: str = '12.4'\n")
    phantom = make_phantom(
        tmp_path / "lib", "int cudaMalloc(void) {return 0;} int ncclSend(void) {return 0;}"
    )
    assert check_torch(found_torch(), phantom).version == version


@needs_compiler
def test_a_missing_phantom_says_how_to_get_it(site: Path, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"ullage\.ground\.native\.build"):
        check_torch(found_torch(), tmp_path)


@needs_compiler
def test_a_cpu_only_build_says_what_it_is_and_what_to_do(site: Path) -> None:
    (site / "torch" / "version.py").write_text("__version__ = '2.11.0+cpu'\ncuda: str = None\n")
    with pytest.raises(EnvironmentProblem, match=r"2\.11\.0\+cpu .* CPU-only .*ullage env DIR"):
        found_torch()


def test_no_torch_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_build, "_own_torch", lambda: None)
    with pytest.raises(EnvironmentProblem, match=r"no torch is installed .*ullage env DIR"):
        found_torch()


def test_what_is_no_interpreter_says_so() -> None:
    with pytest.raises(EnvironmentProblem, match="does not run as a Python interpreter"):
        find_torch("/bin/false")


def test_the_torch_of_a_virtual_environment_is_read_without_its_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    torch = tmp_path / "env" / "lib" / "python3.12" / "site-packages" / "torch"
    torch.mkdir(parents=True)
    (torch / "__init__.py").touch()
    (torch / "version.py").write_text("__version__ = '2.15.0+cu132'\n")
    python = str(tmp_path / "env" / "bin" / "python")  # which is not there
    config = tmp_path / "env" / "pyvenv.cfg"
    config.write_text("include-system-site-packages = false\nversion = 3.12.1\n")
    assert find_version(python) == "2.15.0+cu132"
    # What may come before it is asked of the interpreter.
    for before in (tmp_path / "torch.py", tmp_path / "elsewhere" / "torch"):
        before.mkdir(parents=True)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
        with pytest.raises(EnvironmentProblem, match="does not run as a Python interpreter"):
            find_version(python)
        before.rmdir()
    config.write_text("include-system-site-packages = true\nversion = 3.12.1\n")
    with pytest.raises(EnvironmentProblem, match="does not run as a Python interpreter"):
        find_version(python)


@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF", b"not a library", b"\x7fELF\x02\x01" + b"\xff" * 200]
)
def test_a_damaged_library_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.so"
    path.write_bytes(content)
    with pytest.raises(EnvironmentProblem, match=r"broken\.so"):
        read_needed(path)


@pytest.mark.parametrize(
    ("version", "expected"),
    [("2.6.0", True), ("2.12.1+cu128", True), ("2.13.0", False), ("2.15.0+cu132", False)],
)
def test_later_allocators_do_not_choose_by_address(version: str, *, expected: bool) -> None:
    build = TorchBuild(version, "13.2", Path(), {}, frozenset(), frozenset())
    assert build.chooses_by_address is expected
