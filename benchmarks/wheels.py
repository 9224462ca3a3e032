"""Checks the wheels of `make wheel`: this machine's by use, any other's by its libraries.

    python -m benchmarks.wheels --python .envs/torch-newest/bin/python
    python -m benchmarks.wheels --python ... --qemu qemu-aarch64-static --sysroot DIR

This machine's wheel is installed into an environment of its own, and the commands of README.md run
from it: in a directory outside the clone, with no C compiler on PATH. `--python` is an interpreter
with torch. Of each wheel the libraries are read with readelf: the machine, the libraries that they
need, and the newest version of glibc among their symbols. With an emulator of Debian's qemu-user
and the libraries of the other machine (Debian's libc6-arm64-cross), the loader of that machine also
binds all symbols of each library of the other wheel.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.documents.blocks import ROOT, read_page
from benchmarks.documents.play import is_never_run, play
from benchmarks.provenance import made_by, torch_version
from benchmarks.results import publish, table
from ullage.ground.version import __version__

_COMPILER = re.compile(
    r"(?:.*-)?(?:cc|c\+\+|c89|c99|gcc|g\+\+|cpp|tcc|clang|clang\+\+|zig)(?:-\d+)?"
)
# What a system has besides the wheel.
_OF_GLIBC = re.compile(r"(?:libc|libm|libdl|libpthread|librt|ld-linux.*)\.so\.\d")


@dataclass(frozen=True, slots=True)
class Libraries:
    """The libraries of a wheel, as they lie on the disk.

    Attributes:
        machine: such as aarch64, from the name of the wheel.
        paths: of each library.
        needed: libraries that they need, and that the wheel does not have.
        glibc: the newest version of glibc that a symbol has.
    """

    machine: str
    paths: tuple[Path, ...]
    needed: tuple[str, ...]
    glibc: tuple[int, ...]


def read_libraries(wheel: Path, directory: Path) -> Libraries:
    """Unpacks a wheel, and reads its libraries.

    Raises:
        ValueError: a library is of another machine than the wheel's name says.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if "/native/lib/" in name and ".so" in name]
        paths = tuple(Path(archive.extract(name, directory)) for name in sorted(names))
    machine = wheel.stem.rpartition("linux_2_17_")[2] or wheel.stem.partition("manylinux2014_")[2]
    text = subprocess.run(
        ["readelf", "--wide", "--file-header", "--dynamic", "--version-info", *paths],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    machines = {found.strip() for found in re.findall(r"^ +Machine: +(.+)$", text, re.MULTILINE)}
    expected = {"x86_64": "Advanced Micro Devices X86-64", "aarch64": "AArch64"}[machine]
    if machines != {expected}:
        raise ValueError(f"{wheel.name}: found libraries of {machines}; expected {expected} alone")
    own = {path.name for path in paths}
    needed = {*re.findall(r"\(NEEDED\).*\[(.+?)\]", text)} - own
    versions = [tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([\d.]+)", text)]
    return Libraries(machine, paths, tuple(sorted(needed)), max(versions, default=()))


def load_all(libraries: Libraries, emulator: Path, sysroot: Path) -> int:
    """How many libraries the other machine's own loader binds, with all that they need: each by
    itself, as `ldd -r` does.
    """
    loader = next((sysroot / "lib").glob("ld-linux-*.so.*"))
    count = 0
    for path in libraries.paths:
        variables = {
            "LD_LIBRARY_PATH": f"{path.parent}:{sysroot / 'lib'}", "LD_TRACE_LOADED_OBJECTS": "1",
            "LD_WARN": "1", "LD_BIND_NOW": "1",
        }  # fmt: skip
        given = [word for name, text in variables.items() for word in ("-E", f"{name}={text}")]
        command = [emulator, "-L", sysroot, *given, loader, path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        if done.returncode or "undefined symbol" in said or "not found" in said:
            print(f"{path.name}: {said.strip()}", file=sys.stderr)
        else:
            count += 1
    return count


def without_compilers(directory: Path) -> Path:
    """A directory with links to all programs on PATH that are no C compilers."""
    directory.mkdir()
    for folder in map(Path, reversed(os.get_exec_path())):
        for path in folder.iterdir() if folder.is_dir() else ():
            link = directory / path.name
            if not _COMPILER.fullmatch(path.name):
                link.unlink(missing_ok=True)
                link.symlink_to(path)
    return directory


def run_readme(wheel: Path, python: Path, directory: Path) -> tuple[int, list[str]]:
    """Installs a wheel, and runs README's commands from it: how many ran, and what failed."""
    environment = directory / "installed"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    own = environment / "bin" / "python"
    install = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel]
    os.environ["PATH"] = str(without_compilers(directory / "programs"))
    subprocess.run(install, check=True)
    failures, count = [], 0
    for result in play(read_page(ROOT / "README.md"), python, installed=own):
        commands = [one for one in result.block.commands if not is_never_run(result.block, one)]
        count += len(commands)
        failures += result.failures
    return count, failures


def _rows(
    wheels: Sequence[Path], args: argparse.Namespace, directory: Path
) -> Iterator[tuple[str, ...]]:
    """A row for each wheel; raises SystemExit where something of it does not hold."""
    for wheel in wheels:
        libraries = read_libraries(wheel, directory / wheel.stem)
        foreign = [name for name in libraries.needed if not _OF_GLIBC.fullmatch(name)]
        if foreign or libraries.glibc > (2, 17):
            raise SystemExit(f"{wheel.name}: needs {foreign}, and glibc {libraries.glibc}")
        if libraries.machine == platform.machine():
            count, failures = run_readme(wheel, args.python.absolute(), directory)
            how = f"installed; {count - len(failures)} of {count} commands of README.md"
            print("\n".join(failures), file=sys.stderr)
        elif args.qemu is not None:
            count = load_all(libraries, args.qemu, args.sysroot)
            how = f"{count} of {len(libraries.paths)} libraries load under qemu-user"
        else:
            how = "inspected alone"
        yield (
            libraries.machine, f"{wheel.stat().st_size / 2**20:.1f} MiB",
            str(len(libraries.paths)), ", ".join(libraries.needed),
            ".".join(map(str, libraries.glibc)), how,
        )  # fmt: skip


def render(rows: Sequence[Sequence[str]], *, torch: str) -> str:
    """The report."""
    lines = ["# Wheels", made_by("benchmarks.wheels", torch=torch)]
    lines.append(
        "Those of `make wheel`. *needs* are libraries outside the wheel, *glibc* the newest of the "
        "symbols' versions. This machine's wheel was installed into an empty environment outside "
        "the clone, without a compiler on PATH; libraries that load have all symbols bound."
    )
    head = ("machine", ">size", ">libraries", "needs", "glibc", "how it was checked")
    return "\n\n".join([*lines, table(head, rows)]) + "\n"


def main() -> None:
    """Checks the wheels in dist, and writes the part of the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", type=Path, required=True, help="an interpreter with torch")
    parser.add_argument("--qemu", type=Path, help="an emulator of the other machine")
    parser.add_argument("--sysroot", type=Path, help="where its ld.so and libc are")
    args = parser.parse_args()
    wheels = sorted((ROOT / "dist").glob(f"ullage-{__version__}-*.whl"))
    if not wheels:
        raise SystemExit(f"dist has no wheels of ullage {__version__}; make them with `make wheel`")
    with tempfile.TemporaryDirectory() as directory:
        rows = list(_rows(wheels, args, Path(directory)))
    publish("wheels", render(rows, torch=torch_version(args.python)))


if __name__ == "__main__":
    main()
