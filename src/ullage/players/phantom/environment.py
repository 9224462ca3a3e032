"""Thin environments: a virtual environment with PyTorch's CUDA build and none of NVIDIA's packages.

The phantom answers for NVIDIA's libraries. So a program under `ullage run` needs only torch's own
wheel and its pure-Python dependencies: about 1.5 GB instead of 5. NVIDIA's packages are installed
as empty placeholders (see placeholders.py). The phantom's libraries replace theirs; outside `ullage
run` they report that there is no GPU.

    make_environment(Path("thin"), EnvironmentSpec(torch="2.15.0"), progress=print)
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ullage.ground.errors import EnvironmentProblem
from ullage.ground.native import build
from ullage.players.phantom.torch_build import OLDEST
from ullage.verbs.env.options import EnvironmentSpec

# Packages that are there in name only, so that pip takes torch's NVIDIA packages for installed.

# What the extras of NVIDIA's cuda-toolkit package stand for where the name is not nvidia-EXTRA.
# Source: Requires-Dist of cuda-toolkit 13.0.2 and 13.2.2.
_TOOLKIT_PACKAGES = {
    "cccl": "nvidia-cuda-cccl",
    "crt": "nvidia-cuda-crt",
    "cudart": "nvidia-cuda-runtime",
    "culibos": "nvidia-cuda-culibos",
    "cupti": "nvidia-cuda-cupti",
    "nvcc": "nvidia-cuda-nvcc",
    "nvrtc": "nvidia-cuda-nvrtc",
    "opencl": "nvidia-cuda-opencl",
    "profiler": "nvidia-cuda-profiler-api",
    "sanitizer": "nvidia-cuda-sanitizer-api",
}
_REQUIREMENT = re.compile(
    r"^\s*(?P<name>[A-Za-z0-9._-]+)\s*(?:\[(?P<extras>[^]]*)\])?\s*\(?(?P<versions>[^;)]*)\)?\s*"
)
_AT_LEAST = re.compile(r"(?:===|==|~=|>=)\s*(?P<version>[0-9][A-Za-z0-9.!+]*)")


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A package that is there in name only.

    extras: the optional parts that it claims to have, such as cublas of cuda-toolkit.
    """

    name: str
    version: str
    extras: tuple[str, ...] = ()


def is_nvidia_requirement(requirement: str) -> bool:
    """True if the requirement (a Requires-Dist line) names a package of NVIDIA's, or Triton."""
    name = requirement_name(requirement)
    return name.startswith(("nvidia-", "cuda-")) or name == "triton"


def requirement_name(requirement: str) -> str:
    """The package that a Requires-Dist line names, normalised: lower case, dashes."""
    match = _REQUIREMENT.match(requirement)
    return re.sub(r"[-_.]+", "-", match["name"]).lower() if match else ""


def placeholders_for(requirements: Iterable[str]) -> tuple[Placeholder, ...]:
    """The placeholders for those requirements that name NVIDIA's packages or Triton.

    Each has the lowest version that the requirement allows. Where cuda-toolkit is asked for by its
    extras, the packages behind the extras come too, in the toolkit's version: others ask for them
    by name.
    """
    placeholders: dict[str, Placeholder] = {}
    for requirement in filter(is_nvidia_requirement, requirements):
        match = _REQUIREMENT.match(requirement)
        if not match:  # is_nvidia_requirement has matched it
            continue
        name = requirement_name(requirement)
        lowest = _AT_LEAST.search(match["versions"])
        version = lowest["version"] if lowest else "0"
        extras = tuple(part.strip() for part in (match["extras"] or "").split(",") if part.strip())
        placeholders[name] = Placeholder(name, version, extras)
        if name == "cuda-toolkit":
            for extra in extras:
                package = _TOOLKIT_PACKAGES.get(extra, f"nvidia-{extra}")
                placeholders.setdefault(package, Placeholder(package, version))
    return tuple(placeholders.values())


def write_placeholder(site_packages: Path, placeholder: Placeholder) -> Path:
    """Writes the package's metadata into a site-packages directory; returns its .dist-info."""
    stem = f"{placeholder.name.replace('-', '_')}-{placeholder.version}"
    dist_info = site_packages / f"{stem}.dist-info"
    dist_info.mkdir(exist_ok=True)
    metadata = [
        "Metadata-Version: 2.1",
        f"Name: {placeholder.name}",
        f"Version: {placeholder.version}",
        "Summary: Placeholder made by `ullage env`; the package's files are not here",
        *(f"Provides-Extra: {extra}" for extra in placeholder.extras),
    ]
    wheel = "Wheel-Version: 1.0\nGenerator: ullage\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {"METADATA": "\n".join(metadata) + "\n", "WHEEL": wheel, "INSTALLER": "ullage\n"}
    record = []
    for name, text in files.items():
        (dist_info / name).write_text(text, encoding="utf-8")
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        record.append(f"{dist_info.name}/{name},sha256={digest.decode()},{len(text.encode())}")
    record.append(f"{dist_info.name}/RECORD,,")
    (dist_info / "RECORD").write_text("\n".join(record) + "\n", encoding="utf-8")
    return dist_info


# Written last: an environment without this file is not finished.
STAMP = "ullage-env.json"
# Written first and removed last: a directory with this file is an unfinished environment of ours.
UNFINISHED = "ullage-env.unfinished"

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Environment:
    """A finished thin environment: its interpreter and the version of its torch."""

    python: Path
    torch: str


@dataclass(frozen=True, slots=True)
class _InstalledTorch:
    version: str
    has_cuda: bool
    lib: Path
    requirements: tuple[str, ...]
    file_names: frozenset[str]


def make_environment(
    directory: Path, spec: EnvironmentSpec, *, force: bool = False, progress: Progress
) -> Environment:
    """Makes a thin environment in `directory`, or reuses the one there if it has these contents.

    force: replace an environment that has other contents.
    progress: called with a line for each step.
    Raises: EnvironmentProblem: not Linux; torch is too old; the directory contains something else;
        Python has no venv module; pip failed; the torch that pip finds is not a CUDA build.
    """
    _require_linux()
    _require_new_enough(spec.torch)
    stamp = _stamp(spec)
    python = directory / "bin" / "python"
    present = _read_stamp(directory)
    if present is not None and present.get("asked") == stamp and python.exists():
        progress(f"{directory} already holds torch {present.get('torch')}")
        site_packages = _site_packages(python)
        # The phantom may be newer than the environment.
        _put_phantom(_installed_torch(site_packages))
        return Environment(python, str(present.get("torch")))
    _clear(directory, force=force, progress=progress)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / UNFINISHED).touch()
    _make_venv(directory, spec, progress)
    # As Python 3.13's venv does, so that `git add .` in a project does not add 1.5 GB.
    (directory / ".gitignore").write_text("*\n", encoding="utf-8")
    torch = _fill(directory, python, spec, progress)
    content = {"schema": "ullage.env/1", "torch": torch, "asked": stamp}
    (directory / STAMP).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (directory / UNFINISHED).unlink()
    return Environment(python, torch)


def _fill(directory: Path, python: Path, spec: EnvironmentSpec, progress: Progress) -> str:
    """Installs everything into the fresh virtual environment; returns torch's version."""
    site_packages = _site_packages(python)
    torch = _install_torch(python, site_packages, spec, progress)
    keep = {"triton"} if spec.with_triton else set()
    absent = [
        line
        for line in torch.requirements
        if is_nvidia_requirement(line) and requirement_name(line) not in keep
    ]
    placeholders = placeholders_for(absent)
    progress(f"Writing placeholders for {len(placeholders)} packages that the phantom replaces")
    for placeholder in placeholders:
        write_placeholder(site_packages, placeholder)
    _put_phantom(torch)
    needs = [line for line in torch.requirements if line not in absent]
    progress(f"Installing what torch needs: {', '.join(map(requirement_name, needs))}, numpy")
    _pip(python, "install", *needs, "numpy")
    if spec.requirements:
        progress(f"Installing {', '.join(map(str, spec.requirements))}")
        # A requirement for another torch must fail, not replace the installed one.
        constraint = directory / "ullage-env.constraint"
        constraint.write_text(f"torch=={torch.version}\n", encoding="utf-8")
        files = [word for path in spec.requirements for word in ("-r", str(path))]
        _pip(python, "install", "-c", str(constraint), *files)
    return torch.version


def _install_torch(
    python: Path, site_packages: Path, spec: EnvironmentSpec, progress: Progress
) -> _InstalledTorch:
    """Installs torch's wheel alone, from pip's configured sources or from its default ones.

    A machine's pip may be configured to prefer a CPU build (local wheels, another index). Then this
    function tries again without the configured wheels, and at last without any configuration.
    """
    requirement = f"torch=={spec.torch}" if spec.torch else "torch"
    progress(f"Installing {requirement} without NVIDIA's packages (a download of about 0.6 GB)")
    _pip(python, "install", "--no-deps", requirement)
    first = installed = _installed_torch(site_packages)
    with tempfile.TemporaryDirectory() as empty:
        variables = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
        variables |= {k: v for k, v in os.environ.items() if k in {"PIP_CERT", "PIP_PROXY"}}
        for environ in (
            # pip ignores an empty setting, so an empty directory replaces the configured one.
            {**os.environ, "PIP_FIND_LINKS": empty},
            {**variables, "PIP_CONFIG_FILE": os.devnull},
        ):
            if installed.has_cuda:
                return installed
            progress(f"pip found torch {installed.version}, not a CUDA build; looking elsewhere")
            arguments = ("install", "--no-deps", "--force-reinstall", requirement)
            try:
                _pip(python, *arguments, environ=environ)
            except EnvironmentProblem:
                continue
            installed = _installed_torch(site_packages)
    if installed.has_cuda:
        return installed
    raise EnvironmentProblem(
        f"pip found torch {first.version}, which is not a CUDA build (it has no libtorch_cuda.so); "
        "a CUDA build is needed, and none was found without pip's configuration either; PyPI has "
        "them for Linux: point PIP_INDEX_URL at an index that has one, or name a version that has "
        "one with --torch"
    )


def _installed_torch(site_packages: Path) -> _InstalledTorch:
    """Reads the version and the files of the environment's torch, without importing it."""
    distribution = next(iter(metadata.distributions(name="torch", path=[str(site_packages)])), None)
    if distribution is None:
        raise EnvironmentProblem(
            f"no torch in {str(site_packages)!r}; make the environment anew with --force"
        )
    lib = site_packages / "torch" / "lib"
    return _InstalledTorch(
        version=distribution.version,
        has_cuda="+cpu" not in distribution.version and (lib / "libtorch_cuda.so").exists(),
        lib=lib,
        requirements=tuple(line for line in distribution.requires or () if "extra ==" not in line),
        file_names=frozenset(path.name for path in distribution.files or ()),
    )


def _put_phantom(torch: _InstalledTorch) -> None:
    """Copies the phantom's libraries beside torch's, where torch searches for NVIDIA's.

    Without them torch could not be imported outside `ullage run`. They are copies, so that the
    environment also works without this installation of ullage.
    """
    for name in (build.LIBRARY, *build.read_sonames()):
        source = build.DEFAULT_OUT / name
        if not source.exists():
            raise EnvironmentProblem(
                f"the phantom's library {str(source)!r} is missing; "
                "build it with `python -m ullage.ground.native.build`"
            )
        # Files of torch's own wheel stay.
        if name not in torch.file_names:
            aside = torch.lib / f".{name}.new"
            shutil.copyfile(source, aside)
            aside.replace(torch.lib / name)


def _make_venv(directory: Path, spec: EnvironmentSpec, progress: Progress) -> None:
    interpreter = str(spec.python or sys.executable)
    progress(f"Making a virtual environment in {directory} with {interpreter}")
    try:
        _call([interpreter, "-m", "venv", str(directory)])
    except FileNotFoundError:
        raise EnvironmentProblem(f"there is no Python interpreter {interpreter!r}") from None
    except subprocess.CalledProcessError as error:
        raise EnvironmentProblem(
            f"`{interpreter} -m venv` failed; Debian and Ubuntu have the module in the package "
            "python3-venv:\n" + _tail(error.stdout)
        ) from None


def _site_packages(python: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('platlib'))"
    try:
        return Path(_call([str(python), "-I", "-c", code]).strip())
    except (OSError, subprocess.CalledProcessError):
        raise EnvironmentProblem(
            f"the interpreter {str(python)!r} does not start; make the environment anew, --force"
        ) from None


def _pip(python: Path, *arguments: str, environ: dict[str, str] | None = None) -> None:
    command = [str(python), "-I", "-m", "pip", "--disable-pip-version-check", *arguments]
    try:
        _call(command, environ)
    except subprocess.CalledProcessError as error:
        raise EnvironmentProblem(
            f"`pip {' '.join(arguments)}` failed:\n{_tail(error.stdout)}"
        ) from None


def _call(command: Sequence[str], environ: dict[str, str] | None = None) -> str:
    """Runs a command and returns its output, including errors."""
    done = subprocess.run(
        command,
        check=True,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environ,
    )
    return str(done.stdout)


def _tail(output: str) -> str:
    return "\n".join(output.strip().splitlines()[-15:])


def _clear(directory: Path, *, force: bool, progress: Progress) -> None:
    """Removes an environment at this path. Refuses any other directory, and a finished environment
    without `force`.
    """
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return
    if (directory / UNFINISHED).exists():
        progress(f"{directory} was left unfinished; starting again")
    elif not (directory / "pyvenv.cfg").exists():
        raise EnvironmentProblem(
            f"{str(directory)!r} exists and is not a virtual environment; name another directory"
        )
    elif not force:
        present = _read_stamp(directory)
        what = f"with torch {present.get('torch')}" if present else "that ullage did not make"
        raise EnvironmentProblem(
            f"{str(directory)!r} holds a virtual environment {what}, not what is asked for; "
            "name another directory, or replace it with --force"
        )
    shutil.rmtree(directory)


def _stamp(spec: EnvironmentSpec) -> dict[str, object]:
    """The requested contents, in a form that can be compared with a later request."""
    digest = hashlib.sha256()
    for path in spec.requirements:
        try:
            digest.update(path.read_bytes())
        except OSError as error:
            raise EnvironmentProblem(
                f"the requirements file {str(path)!r} cannot be read: {error.strerror}"
            ) from None
    return {
        "torch": spec.torch,
        "requirements": digest.hexdigest(),
        "triton": spec.with_triton,
        "python": str(spec.python) if spec.python else None,
    }


def _read_stamp(directory: Path) -> dict[str, object] | None:
    try:
        content = json.loads((directory / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _require_new_enough(torch: str | None) -> None:
    numbers = re.match(r"(\d+)\.(\d+)", torch or "")
    if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise EnvironmentProblem(
            f"torch {torch} is older than {oldest}, the oldest that this ullage runs; ask for "
            f"--torch {oldest}.0 or a newer one"
        )


def _require_linux() -> None:
    if platform.system() != "Linux":
        raise EnvironmentProblem(
            f"the phantom GPU needs Linux, and this is {platform.system()}; "
            "use WSL2 on Windows, or a Linux container on either"
        )
