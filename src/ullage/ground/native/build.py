"""Builds the native parts: the phantom library with a small stub for each of NVIDIA's sonames, the
reader of snapshots and the allocator's rules (log/csrc), the replay of an estimate
(players/eager/csrc), the event hook of `ullage record` (players/inside/csrc), and the guard's
reader of version counters (act/guard/csrc).

The stubs have no code. Each has a soname, such as libcublas.so.13, and depends on
libullage_phantom.so beside it. So a loader that searches for the soname finds the phantom's
functions.

    python -m ullage.ground.native.build [--out DIR] [--target aarch64-linux-gnu.2.17] [--cc CC]

The file imports only the standard library, because the build of the package loads it by path before
ullage is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_PACKAGE = Path(__file__).parents[2]
SOURCES = _PACKAGE / "players" / "phantom" / "csrc"
DEFAULT_OUT = Path(__file__).parent / "lib"
LIBRARY = "libullage_phantom.so"
# NVML for other programs than the one that runs on the phantom, which has it as libnvidia-ml.so.1.
NVML = "libullage_nvml.so"
# The other libraries: the sources of each, folders and files.
EXTENSIONS = {
    "libullage_reader.so": (_PACKAGE / "log" / "csrc", SOURCES / "machine" / "address_space.c"),
    "libullage_replay.so": (
        _PACKAGE / "players" / "eager" / "csrc",
        _PACKAGE / "log" / "csrc" / "allocator.c",
        SOURCES / "machine" / "address_space.c",
    ),
    NVML: (
        _PACKAGE / "players" / "phantom" / "nvml",
        SOURCES / "answers" / "nvml.c",
        SOURCES / "answers" / "nvml_card.c",
        SOURCES / "machine" / "device_text.c",
        SOURCES / "machine" / "processes.c",
        SOURCES / "machine" / "published.c",
        SOURCES / "machine" / "room.c",
    ),
    "libullage_event_hook.so": (
        _PACKAGE / "players" / "inside" / "csrc",
        SOURCES / "machine" / "scope.c",
        SOURCES / "machine" / "libc10.c",
    ),
    "libullage_guard.so": (_PACKAGE / "act" / "guard" / "csrc",),
}
LIBRARIES = (LIBRARY, *EXTENSIONS)
STAMP = "build.stamp"

COMPILE_FLAGS = (
    "-std=c11",
    "-D_GNU_SOURCE=",  # the phantom needs Linux; the value is empty as in the sources' own #define
    "-O2",
    "-g0",
    "-fPIC",
    "-fvisibility=hidden",
    "-pthread",
    "-Wall",
    "-Wextra",
    f"-I{SOURCES}",
    f"-I{SOURCES / 'machine'}",
    f"-I{SOURCES / 'answers'}",
    f"-I{_PACKAGE / 'players' / 'phantom' / 'nvml'}",
    f"-I{_PACKAGE / 'log' / 'csrc'}",
)
# With -z defs an undefined function is an error here, not in the user's program.
LINK_FLAGS = ("-shared", "-s", "-pthread", "-Wl,-z,defs")
# The stubs reference nothing, so without --no-as-needed the linker would drop the phantom. They
# also have no functions. torch imports cudaMalloc with the version libcudart.so.13: glibc accepts
# an unversioned definition from any library except the one with that soname, which is to have a
# version of that name, or every program in C++ (torch's own helpers) is told that it has none.
STUB_FLAGS = ("-shared", "-s", "-nostdlib", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN")
UNVERSIONED = ("libcuda.", "libnvidia-ml.", "libnccl.")
VERSIONS = {"libnvshmem_host.so.3": "NVSHMEM"}  # the others' are their sonames


class BuildError(Exception):
    """The phantom cannot be built; the message says what to do."""


def build(out: Path = DEFAULT_OUT, *, target: str | None = None, cc: str | None = None) -> Path:
    """Builds the library and the stubs into `out`, unless they are there and newer.

    target: a zig target, such as aarch64-linux-gnu.2.17 (CPU, system, oldest glibc); None builds
    for this machine. cc: the C compiler's command; None finds one. Returns: the directory of the
    libraries. Raises: BuildError: no compiler, or the compiler refused the sources (the message has
    its output).
    """
    if target is None and platform.system() != "Linux":
        raise BuildError(
            f"the phantom is a Linux library and this is {platform.system()}; "
            "use WSL2 or a Linux container, or cross-compile with --target x86_64-linux-gnu.2.17"
        )
    compiler = find_compiler(target=target, cc=cc)
    sonames = read_sonames()
    stamp = _stamp(compiler)
    if _is_current(out, sonames, stamp):
        return out
    out.mkdir(parents=True, exist_ok=True)
    # Built in a temporary directory and then moved, so that an interrupted build leaves no partial
    # result in `out`.
    with tempfile.TemporaryDirectory(dir=out, prefix=".build-") as aside:
        _compile(compiler, sonames, Path(aside))
        (out / STAMP).unlink(missing_ok=True)
        for name in (*LIBRARIES, *sonames):
            (Path(aside) / name).replace(out / name)
        (out / STAMP).write_text(stamp, encoding="ascii")
    return out


def read_sonames() -> tuple[str, ...]:
    """The NVIDIA sonames that the phantom answers for, from csrc/sonames.txt."""
    lines = (SOURCES / "sonames.txt").read_text(encoding="ascii").splitlines()
    return tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))


def find_compiler(*, target: str | None = None, cc: str | None = None) -> tuple[str, ...]:
    """Finds the C compiler's command: `cc`, $CC, cc, gcc, clang, or that of PyPI's ziglang.

    A target always needs zig, which contains the C library of every target.
    Raises: BuildError: there is none.
    """
    # Without a target zig compiles for exactly this CPU, but the library may run on another.
    zig = (sys.executable, "-m", "ziglang", "cc")
    has_zig = importlib.util.find_spec("ziglang") is not None
    if target is not None:
        if has_zig:
            return (*zig, "-target", target)
        raise BuildError(
            f"building for {target!r} needs the zig compiler; install it with `pip install ziglang`"
        )
    compiler = cc or os.environ.get("CC")
    if compiler:
        return tuple(shlex.split(compiler))
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return (name,)
    if has_zig:
        return (*zig, "-mcpu=baseline")
    raise BuildError(
        "no C compiler found: looked at $CC, for cc, gcc and clang on PATH, and for the Python "
        "package ziglang; `pip install ziglang` brings one, so does your system's gcc package"
    )


def _stamp(compiler: tuple[str, ...]) -> str:
    """A hash of everything that the result depends on."""
    # Not where Python is: a build in a throw-away environment must not look like another.
    command = [word for word in compiler if word != sys.executable]
    digest = hashlib.sha256(repr(command).encode())
    folders = [SOURCES, *(path for places in EXTENSIONS.values() for path in places)]
    files = [path for folder in folders for path in folder.rglob("*")]
    sources = [path for path in files if path.suffix in {".c", ".h", ".inc", ".txt"}]
    for path in (Path(__file__), *sorted(sources)):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _is_current(out: Path, sonames: tuple[str, ...], stamp: str) -> bool:
    if not all((out / name).is_file() for name in (*LIBRARIES, *sonames)):
        return False
    built = out / STAMP
    return built.is_file() and built.read_text(encoding="ascii") == stamp


def _compile(compiler: tuple[str, ...], sonames: tuple[str, ...], aside: Path) -> None:
    library = aside / LIBRARY
    stub = aside / "stub.c"
    stub.write_text("typedef int nothing_here;\n", encoding="ascii")
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        links = [
            _compile_objects(pool, compiler, sources, aside / name)
            for name, sources in ((LIBRARY, (SOURCES,)), *EXTENSIONS.items())
        ]
        for name, objects in zip(LIBRARIES, links, strict=True):
            output = (f"-Wl,-soname,{name}", "-o", str(aside / name))
            _call(compiler, *LINK_FLAGS, *output, *map(str, objects), "-ldl")
        for done in [
            pool.submit(
                _call,
                compiler,
                *STUB_FLAGS,
                *_version_flags(aside, soname),
                # A name without a number is for linkers; their output then requires version 1.
                f"-Wl,-soname,{soname}{'' if soname[-1].isdigit() else '.1'}",
                "-o",
                str(aside / soname),
                str(stub),
                str(library),
            )
            for soname in sonames
        ]:
            done.result()


def _version_flags(aside: Path, soname: str) -> tuple[str, ...]:
    """The flags for the version by which NVIDIA's library has a stub's functions, if it has one."""
    if soname.startswith(UNVERSIONED):
        return ()
    script = aside / f"{soname}.version"
    script.write_text(f"{VERSIONS.get(soname, soname)} {{ }};\n", encoding="ascii")
    return (f"-Wl,--version-script={script}",)


def _compile_objects(
    pool: ThreadPoolExecutor, compiler: tuple[str, ...], sources: tuple[Path, ...], name: Path
) -> list[Path]:
    """Compiles each source of a library into an object that is named after both."""
    source_files = []
    for place in sources:
        files = [place] if place.is_file() else sorted(place.rglob("*.c"))
        if not files:
            raise BuildError(
                f"no C sources found in {str(place)!r}; the installation is incomplete"
            )
        source_files += files
    objects = [name.with_name(f"{name.stem}-{source.stem}.o") for source in source_files]
    for done in [
        pool.submit(_call, compiler, *COMPILE_FLAGS, "-c", str(source), "-o", str(object_))
        for source, object_ in zip(source_files, objects, strict=True)
    ]:
        done.result()
    return objects


def _call(compiler: tuple[str, ...], *arguments: str) -> None:
    """Runs the compiler; prints its warnings, and raises BuildError with its output if it fails."""
    command = [*compiler, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(
            f"the C compiler {compiler[0]!r} cannot be started ({error.strerror}); "
            "set CC to one that can, or `pip install ziglang`"
        ) from None
    if done.returncode != 0:
        raise BuildError(f"`{shlex.join(command)}` failed:\n{done.stderr.strip()}")
    sys.stderr.write(done.stderr)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ullage.ground.native.build", description="Builds the phantom's libraries."
    )
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, metavar="DIR")
    parser.add_argument(
        "--target", help="cross-compile with zig, for example aarch64-linux-gnu.2.17"
    )
    parser.add_argument("--cc", help="the C compiler's command (default: $CC, cc, gcc, clang, zig)")
    options = parser.parse_args(arguments)
    try:
        out = build(options.out, target=options.target, cc=options.cc)
    except BuildError as error:
        sys.stderr.write(f"ullage: {error}\n")
        return 2
    sys.stdout.write(f"Wrote {out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
