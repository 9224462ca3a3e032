"""Thin environments, made from wheels of a few bytes: no network, no torch."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from ullage.ground.errors import EnvironmentProblem
from ullage.ground.native import build
from ullage.players.phantom import environment
from ullage.players.phantom.environment import STAMP, UNFINISHED, make_environment
from ullage.verbs.env.options import EnvironmentSpec

TORCH_NEEDS = (
    "filelock",
    'cuda-toolkit[cublas]==13.2.2; platform_system == "Linux"',
    "nvidia-cudnn-cu13==9.26.0.51",
    "triton~=3.9.0",
    'optree>=0.13.0; extra == "optree"',
)
NEWEST = EnvironmentSpec()
CUDA_FILES = ("torch/lib/libtorch_cuda.so",)


def write_wheel(
    directory: Path,
    name: str,
    version: str,
    files: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
) -> None:
    """A wheel whose files are empty."""
    directory.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {line}\n" for line in needs)
    tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(directory / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for file in (f"{name}/__init__.py", *files):
            wheel.writestr(file, "")
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", tags)
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks: torch, what it needs, and a package that wants NVIDIA's."""
    directory = tmp_path / "wheels"
    write_wheel(directory, "torch", "2.15.0", CUDA_FILES, TORCH_NEEDS)
    write_wheel(directory, "filelock", "3.1")
    write_wheel(directory, "numpy", "2.0")
    write_wheel(directory, "timm", "1.0", needs=("torch", "nvidia-cublas"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


@pytest.fixture(autouse=True)
def phantom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for the built library."""
    directory = tmp_path / "phantom"
    directory.mkdir()
    for name in (build.LIBRARY, *build.read_sonames()):
        (directory / name).write_bytes(b"phantom")
    monkeypatch.setattr(build, "DEFAULT_OUT", directory)


def make(directory: Path, spec: EnvironmentSpec = NEWEST, *, force: bool = False) -> list[str]:
    """Makes the environment; returns the progress lines."""
    lines: list[str] = []
    make_environment(directory, spec, force=force, progress=lines.append)
    return lines


def pip(directory: Path, *arguments: str) -> str:
    """Runs the environment's pip."""
    command = [str(directory / "bin" / "python"), "-m", "pip", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_a_thin_environment_lacks_nothing_and_brings_nothing_in(
    wheels: Path, tmp_path: Path
) -> None:
    thin = tmp_path / "thin"
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("timm\n")
    spec = EnvironmentSpec(torch="2.15.0", requirements=(requirements,))
    make(thin, spec)
    assert "No broken requirements" in pip(thin, "check")
    installed = {line.partition("==")[0] for line in pip(thin, "list", "--format=freeze").split()}
    assert {"torch", "numpy", "filelock", "timm", "triton", "nvidia-cublas"} <= installed
    assert "optree" not in installed
    (lib,) = thin.glob("lib/python*/site-packages/torch/lib")
    assert (lib / build.LIBRARY).read_bytes() == b"phantom"
    assert (lib / "libcudart.so.13").exists()
    assert (thin / ".gitignore").read_text() == "*\n", "a project's git leaves it alone"

    # The second call changes nothing but the phantom, which may be newer.
    (build.DEFAULT_OUT / build.LIBRARY).write_bytes(b"newer")
    assert make(thin, spec) == [f"{thin} already holds torch 2.15.0"]
    assert (lib / build.LIBRARY).read_bytes() == b"newer"
    with pytest.raises(EnvironmentProblem, match=r"torch 2\.15\.0.*--force"):
        make(thin, EnvironmentSpec(torch="2.11.0"))


@pytest.mark.slow
def test_a_requirement_cannot_replace_torch(wheels: Path, tmp_path: Path) -> None:
    write_wheel(wheels, "torch", "2.16.0", CUDA_FILES)
    write_wheel(wheels, "greedy", "1.0", needs=("torch>=2.16",))
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("greedy\n")
    with pytest.raises(EnvironmentProblem, match=r"(?s)pip install.*torch"):
        make(tmp_path / "thin", EnvironmentSpec(torch="2.15.0", requirements=(requirements,)))
    assert (tmp_path / "thin" / UNFINISHED).exists()
    assert not (tmp_path / "thin" / STAMP).exists()


class FakePip:
    """Installs the torch that each call is told to find, without a virtual environment."""

    def __init__(self, site_packages: Path, versions: list[str]) -> None:
        self.site_packages = site_packages
        self.versions = versions
        self.environs: list[dict[str, str] | None] = []
        self.installed: list[str] = []

    def __call__(
        self, python: Path, *arguments: str, environ: dict[str, str] | None = None
    ) -> None:
        if "--no-deps" not in arguments:
            self.installed.extend(arguments)
            return
        for old in self.site_packages.glob("torch-*"):
            (old / "METADATA").unlink()
            old.rmdir()
        version = self.versions[len(self.environs)]
        self.environs.append(environ)
        info = self.site_packages / f"torch-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
            + "".join(f"Requires-Dist: {line}\n" for line in TORCH_NEEDS)
        )
        lib = self.site_packages / "torch" / "lib"
        lib.mkdir(parents=True, exist_ok=True)
        (lib / "libtorch_cuda.so").unlink(missing_ok=True)
        if "+cpu" not in version:
            (lib / "libtorch_cuda.so").touch()


def with_fake_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, versions: list[str]) -> FakePip:
    """Replaces pip and venv."""
    fake = FakePip(tmp_path / "site-packages", versions)
    monkeypatch.setattr(environment, "_pip", fake)
    monkeypatch.setattr(environment, "_make_venv", lambda *_: None)
    monkeypatch.setattr(environment, "_site_packages", lambda _: fake.site_packages)
    return fake


def test_a_cpu_build_from_configured_wheels_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    fake = with_fake_pip(monkeypatch, tmp_path, ["2.13.0+cpu", "2.13.0"])
    assert any("2.13.0+cpu, not a CUDA build" in line for line in make(tmp_path / "thin"))
    first, second = fake.environs
    assert first is None
    # The user's own index is still asked.
    assert second is not None
    assert second["PIP_INDEX_URL"] == "https://mirror.example/simple"


def test_a_machine_that_only_has_cpu_builds_is_told_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = with_fake_pip(monkeypatch, tmp_path, ["2.13.0+cpu"] * 3)
    with pytest.raises(EnvironmentProblem, match=r"2\.13\.0\+cpu.*CUDA build is needed"):
        make(tmp_path / "thin")
    assert len(fake.environs) == 3
    assert not (tmp_path / "thin" / STAMP).exists()


@pytest.mark.parametrize("has_triton", [True, False])
def test_triton_is_real_or_a_placeholder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, has_triton: bool
) -> None:
    fake = with_fake_pip(monkeypatch, tmp_path, ["2.15.0"])
    make(tmp_path / "thin", EnvironmentSpec(with_triton=has_triton))
    assert ("triton~=3.9.0" in fake.installed) == has_triton
    placeholders = list(fake.site_packages.glob("triton-*.dist-info"))
    assert bool(placeholders) != has_triton


def test_an_interrupted_environment_is_made_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_fake_pip(monkeypatch, tmp_path, ["2.15.0"])
    thin = tmp_path / "thin"
    thin.mkdir()
    (thin / UNFINISHED).touch()
    (thin / "half").touch()
    assert any("unfinished" in line for line in make(thin))
    assert not (thin / "half").exists()
    assert (thin / STAMP).exists()
    assert not (thin / UNFINISHED).exists()


def test_a_directory_that_is_no_environment_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(EnvironmentProblem, match=r"not a virtual environment"):
        make(tmp_path, force=True)
    assert (tmp_path / "thesis.tex").exists()


def test_another_environment_is_replaced_only_by_force(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_fake_pip(monkeypatch, tmp_path, ["2.15.0"])
    thin = tmp_path / "thin"
    thin.mkdir()
    (thin / "pyvenv.cfg").touch()
    with pytest.raises(EnvironmentProblem, match=r"did not make.*--force"):
        make(thin)
    make(thin, force=True)
    assert not (thin / "pyvenv.cfg").exists()


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"no Python interpreter '/no/python'"):
        make(tmp_path / "thin", EnvironmentSpec(python=Path("/no/python")))


@pytest.mark.parametrize("system", ["Darwin", "Windows"])
def test_other_systems_are_told_what_to_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: str
) -> None:
    monkeypatch.setattr("platform.system", lambda: system)
    with pytest.raises(EnvironmentProblem, match=rf"{system}.*WSL2.*container"):
        make(tmp_path / "thin")
    assert not (tmp_path / "thin").exists()


@pytest.mark.phantom
def test_outside_a_run_torch_imports_and_sees_no_gpu(thin_python: Path) -> None:
    code = "import torch; print(torch.cuda.is_available(), torch.cuda.device_count())"
    done = subprocess.run(
        [str(thin_python), "-c", code], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["False", "0"]


def test_a_torch_that_is_too_old_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"torch 2\.5\.1 is older than 2\.6, the oldest"):
        environment.make_environment(
            tmp_path / "thin", environment.EnvironmentSpec(torch="2.5.1"), progress=print
        )
    assert not (tmp_path / "thin").exists()
