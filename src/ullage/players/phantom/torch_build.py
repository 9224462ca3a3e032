"""The torch that a program will import: found, read and checked without importing it.

The phantom can stand in for NVIDIA's libraries only where it answers every symbol that this torch
imports, so that is compared before anything is started: `find_torch` reads torch's dynamic tables
(about 10 ms, see elf.py), `check_torch` sets them against what the phantom exports.

    build = check_torch(find_torch(python), LIBRARY_DIR)
    environment[LIBRARIES] = build.libraries_text()
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import string
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ullage.ground.errors import EnvironmentProblem
from ullage.log.ties import FIRST_BY_AGE
from ullage.players.phantom.elf import read_exports, read_imports, read_needed

# What the names of NVIDIA's functions begin with. "cu" alone would also catch LAPACK's cungqr_.
SYMBOL_PREFIXES = (
    *(
        b"__cuda",
        b"cuda",
        b"cublas",
        b"cudnn",
        b"cufft",
        b"cupti",
        b"curand",
        b"cusolver",
        b"cusparse",
    ),
    *(b"nccl", b"nvJitLink", b"nvml", b"nvrtc", b"nvshmem"),
    *(f"cu{letter}".encode() for letter in string.ascii_uppercase),
)
_NVIDIA_SONAME = re.compile(r"lib(cu[a-zA-Z]+|nccl|nv[a-zA-Z_]+|nvidia-ml)\.so\.\d+")
_OWN_LIBRARIES = re.compile(r"libtorch|libc10|libcaffe2")

# Opened by name at run time, so no library needs them.
ALWAYS_PRELOADED = ("libcuda.so.1", "libnvidia-ml.so.1")

# The cuBLAS inside a CUDA toolkit, where torch pins the toolkit alone.
# Source: Requires-Dist of the PyPI package cuda-toolkit 13.0.2; the phantom's own fallback covers
# what is not listed.
_CUBLAS_OF_TOOLKIT = {"13.0": (13, 1, 0)}

_PIN = re.compile(
    r"^Requires-Dist: (?P<name>(?:nvidia|cuda)-[a-z0-9-]+).*?==\s*(?P<version>[0-9.]+)",
    re.MULTILINE,
)
_MAX_NAMED = 8

OLDEST = (2, 6)
"""The oldest torch whose hooks and memory history the record knows."""

# In Python 2 too, so that what it says of itself is known.
_FIND = """
import json, sys
version = list(sys.version_info[:2])
origin = None
if version >= [3, 4]:
    import importlib.util
    spec = importlib.util.find_spec("torch")
    origin = spec and spec.origin
print(json.dumps([version, origin]))
"""
# The recorder runs in the program's interpreter.
_OLDEST_PYTHON = (3, 10)


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """A torch as it lies on the disk.

    Attributes:
        version: such as "2.15.0+cu132".
        cuda: the CUDA it was built for, such as "13.2".
        directory: of the package.
        pins: NVIDIA's packages that it asks for, with their versions.
        sonames: NVIDIA's libraries that it needs.
        imports: NVIDIA's functions that it calls.
    """

    version: str
    cuda: str
    directory: Path
    pins: dict[str, str]
    sonames: frozenset[str]
    imports: frozenset[str]

    def libraries_text(self) -> str:
        """The versions of NVIDIA's libraries, as in the variable LIBRARIES."""
        return ";".join(f"{name}={version}" for name, version in _library_versions(self).items())

    @property
    def release(self) -> tuple[int, int] | None:
        """Such as (2, 15); None where the version names none."""
        number = re.match(r"(\d+)\.(\d+)", self.version)
        return number and (int(number[1]), int(number[2]))

    @property
    def chooses_by_address(self) -> bool:
        """True if the allocator takes the lowest of free blocks of a size, as before 2.13."""
        return self.release is not None and self.release < FIRST_BY_AGE

    def preloaded(self, library_dir: Path) -> tuple[Path, ...]:
        """The stubs to load before anything else, so that torch's own copies of those libraries are
        not.
        """
        sonames = sorted(self.sonames | set(ALWAYS_PRELOADED))
        return tuple(path for path in (library_dir / soname for soname in sonames) if path.exists())


def find_torch(python: str) -> TorchBuild:
    """The torch that an interpreter would import.

    Raises:
        EnvironmentProblem: there is none, or it was not built for CUDA.
    """
    directory = _package_directory(python)
    version, cuda = _read_version(directory)
    libraries = [
        path for path in (directory / "lib").glob("*.so") if _OWN_LIBRARIES.match(path.name)
    ]
    if cuda is None or not any(path.name == "libtorch_cuda.so" for path in libraries):
        raise EnvironmentProblem(
            f"torch {version} in {str(directory)!r} is a CPU-only build; a run on the phantom GPU "
            "needs one built for "
            "CUDA on Linux. Make an environment with it: `ullage env DIR`, then `ullage run "
            "--python DIR/bin/python ...`"
        )
    return TorchBuild(
        version=version,
        cuda=cuda,
        directory=directory,
        pins=_read_pins(directory, version),
        sonames=frozenset(
            soname
            for path in libraries
            for soname in read_needed(path)
            if _NVIDIA_SONAME.fullmatch(soname)
        ),
        imports=frozenset().union(*(read_imports(path, SYMBOL_PREFIXES) for path in libraries)),
    )


def find_version(python: str) -> str:
    """The version of the torch that an interpreter would import, whatever it was built for.

    Raises:
        EnvironmentProblem: there is none.
    """
    return _read_version(_package_directory(python))[0]


def check_torch(build: TorchBuild, library_dir: Path) -> TorchBuild:
    """The build itself, if the phantom in `library_dir` answers all that it asks for.

    Raises:
        EnvironmentProblem: this torch is older than OLDEST, or the phantom is not there, or lacks a
        library or a function that this torch needs.
    """
    if _numbers(build.version.partition("+")[0])[:2] < OLDEST:
        raise EnvironmentProblem(
            f"torch {build.version} is older than {'.'.join(map(str, OLDEST))}, the oldest that "
            "this ullage runs; use a newer one (`ullage env DIR` installs the newest)"
        )
    phantom = library_dir / "libullage_phantom.so"
    if not phantom.exists():
        raise EnvironmentProblem(
            f"the phantom library is not in {str(library_dir)!r}; this ullage was installed "
            "without it. "
            "Install a wheel for Linux, or run `python -m ullage.ground.native.build` where a "
            "C compiler is"
        )
    missing_libraries = sorted(
        soname for soname in build.sonames if not (library_dir / soname).exists()
    )
    if missing_libraries:
        raise EnvironmentProblem(
            f"torch {build.version} needs {', '.join(missing_libraries)}, for which this ullage "
            "does not answer; "
            "use a torch that it knows (`ullage env DIR` installs one), or a newer ullage"
        )
    missing = sorted(build.imports - read_exports(phantom))
    if missing:
        more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        raise EnvironmentProblem(
            f"torch {build.version} calls {', '.join(missing[:_MAX_NAMED])}{more}, which this "
            "ullage does not answer; "
            "use a torch that it knows (`ullage env DIR` installs one), or a newer ullage"
        )
    return build


def _package_directory(python: str) -> Path:
    # Paths are compared as written: the interpreters of two environments are links to one file.
    is_own = Path(python).absolute() == Path(sys.executable).absolute()
    origin = _own_torch() if is_own else _installed_torch(python) or _ask_for_torch(python)
    if origin is None:
        active = _active_environment() if is_own else None
        remedy = f"to run in the one that is active, add `--python {active}`; or " if active else ""
        raise EnvironmentProblem(
            f"no torch is installed for {python}; {remedy}make an environment with it: "
            "`ullage env DIR`, then `ullage run --python DIR/bin/python ...`"
        )
    return Path(origin).parent


def _active_environment() -> str | None:
    """The interpreter of an activated environment that ullage itself is not in."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = os.environ.get(name)
        if prefix and Path(prefix) != Path(sys.prefix) and (Path(prefix) / "bin/python").exists():
            return str(Path(prefix) / "bin/python")
    return None


def _own_torch() -> str | None:
    # Already imported (a notebook, a test) or not: the same file, and nothing is loaded for it.
    spec = importlib.util.find_spec("torch")
    return None if spec is None else spec.origin


def _installed_torch(python: str) -> str | None:
    """The torch of a virtual environment, read from its files; None: they do not say what another
    interpreter would import, as packages of the system or a folder on its path may come first.
    """
    prefix = Path(python).parent.parent
    try:
        text = (prefix / "pyvenv.cfg").read_text(encoding="utf-8")
    except OSError:
        return None
    version = re.search(r"^version(?:_info)? = 3\.(\d+)", text, re.MULTILINE)
    if version is None or (3, int(version[1])) < _OLDEST_PYTHON or "packages = true" in text:
        return None
    before = ["", *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    if any(Path(folder, name).exists() for folder in before for name in ("torch", "torch.py")):
        return None
    torch = prefix / "lib" / f"python3.{version[1]}" / "site-packages" / "torch" / "__init__.py"
    return str(torch) if torch.exists() else None


def _ask_for_torch(python: str) -> str | None:
    try:
        answer = subprocess.run(
            [python, "-c", _FIND], capture_output=True, text=True, timeout=60, check=True
        )
        version, origin = json.loads(answer.stdout.splitlines()[-1])
        is_too_old = tuple(version) < _OLDEST_PYTHON
    except (OSError, subprocess.SubprocessError, ValueError, IndexError, TypeError) as error:
        raise EnvironmentProblem(
            f"{python!r} does not run as a Python interpreter ({_reason(error)}); expected a path "
            "such as DIR/bin/python"
        ) from None
    if is_too_old:
        raise EnvironmentProblem(
            f"{python!r} is Python {'.'.join(map(str, version))}, and a program needs Python "
            f"{'.'.join(map(str, _OLDEST_PYTHON))} or newer to be run; make it an environment with "
            "one: `ullage env DIR --python PATH`"
        )
    return origin if isinstance(origin, str) else None


def _reason(error: Exception) -> str:
    """Why a command failed, in a few words: the last line it wrote, or its exit status."""
    if isinstance(error, subprocess.CalledProcessError):
        lines = str(error.stderr).strip().splitlines()
        return lines[-1][-200:] if lines else f"it exits with {error.returncode}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no answer within {error.timeout:.0f} s"
    return (error.strerror or str(error)) if isinstance(error, OSError) else "its answer is unknown"


def _read_version(directory: Path) -> tuple[str, str | None]:
    try:
        text = (directory / "version.py").read_text(encoding="utf-8")
    except OSError:
        text = ""
    version = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda\b[^=\n]*= '([^']+)'", text, re.MULTILINE)
    if version is None:
        raise EnvironmentProblem(
            f"{str(directory)!r} is not an installed torch: it has no version.py; install torch "
            "there, or make an "
            "environment with `ullage env DIR`"
        )
    return version[1], cuda[1] if cuda else None


def _read_pins(directory: Path, version: str) -> dict[str, str]:
    """NVIDIA's packages in torch's metadata; none where torch was built from source."""
    candidates = [
        directory.parent / f"torch-{name}.dist-info"
        for name in (version, version.partition("+")[0])
    ]
    for path in (*candidates, *directory.parent.glob("torch-*.dist-info")):
        if (path / "METADATA").exists():
            text = (path / "METADATA").read_text(encoding="utf-8", errors="replace")
            # Older metadata puts versions into parentheses: nvidia-nccl-cu12 (==2.21.5).
            return {pin["name"]: pin["version"] for pin in _PIN.finditer(text)}
    return {}


def _library_versions(build: TorchBuild) -> dict[str, int]:
    """The numbers that the libraries' own version queries give."""
    toolkit = _numbers(build.pins.get("cuda-toolkit", build.cuda))
    major = toolkit[0]

    def pinned(name: str) -> tuple[int, ...] | None:
        text = build.pins.get(f"{name}-cu{major}") or build.pins.get(name)
        return _numbers(text) if text else None

    runtime = pinned("nvidia-cuda-runtime") or toolkit
    compiler = pinned("nvidia-cuda-nvrtc") or toolkit
    versions = {
        "cudart": runtime[0] * 1000 + runtime[1] * 10,
        "nvrtc": compiler[0] * 1000 + compiler[1] * 10,
    }
    cublas = pinned("nvidia-cublas") or _CUBLAS_OF_TOOLKIT.get(f"{toolkit[0]}.{toolkit[1]}")
    others = {
        "cublas": (cublas, 10000),
        "cudnn": (pinned("nvidia-cudnn"), 10000),
        "nccl": (pinned("nvidia-nccl"), 10000),
        "cufft": (pinned("nvidia-cufft"), 1000),
        "cusparse": (pinned("nvidia-cusparse"), 1000),
        "cusolver": (pinned("nvidia-cusolver"), 1000),
        "curand": (pinned("nvidia-curand"), 1000),
    }
    for name, (numbers, factor) in others.items():
        if numbers is not None:
            versions[name] = numbers[0] * factor + numbers[1] * 100 + numbers[2]
    return versions


def _numbers(version: str) -> tuple[int, ...]:
    """The first three numbers of a version, missing ones zero."""
    numbers = [int(part) for part in version.split(".") if part.isdigit()][:3]
    return (*numbers, *([0] * (3 - len(numbers))))
