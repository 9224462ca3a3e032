"""Where torch's compiler keeps what it made, and where a linker finds NVIDIA's libraries.

Inductor chooses kernels by timing them and remembers the choice. On the phantom no time is
measured, so the choice means nothing, and a GPU that is here must not find it: each run has a
directory of its own for it, and times kernels as on a machine that has not run the program yet.
What takes long and depends on no choice is kept for the next run: the graphs that Inductor made
code of, for each device apart, and Triton's compiled kernels, which depend on nothing but their
source and the GPU's architecture. A graph for which kernels were timed while it was compiled is not
kept (players/inside/values/autotune.py): but for the small tensors that compiling makes, each run
allocates what the first did.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

_CHOICES = "TORCHINDUCTOR_CACHE_DIR"
# What is kept of it: the graphs with their code, by a digest of all that they were made of.
_GRAPHS = ("fxgraph", "aotautograd")


def compiler_variables(
    run_dir: Path, environment: Mapping[str, str], device: str
) -> dict[str, str]:
    """The environment variables that direct the compiler's caches and its linker.

    Args:
        run_dir: a directory that is removed after the run.
        environment: what the run would have otherwise.
        device: what the native library reads of the device; Inductor knows it by its name alone.
    """
    choices = run_dir / "inductor"
    graphs = _kept(environment, f"graphs-{hashlib.sha256(device.encode()).hexdigest()[:12]}")
    if graphs is not None:
        _link_graphs(choices, graphs)
    variables = {
        _CHOICES: str(choices),
        "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "0",
        "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE": "0",
        "TRITON_CACHE_AUTOTUNING": "0",
        "VLLM_CACHE_ROOT": str(run_dir / "vllm"),  # it keeps what Inductor made, and choices
    }
    names = _link_libraries(run_dir / "link", environment)
    variables["LIBRARY_PATH"] = ":".join(filter(None, (environment.get("LIBRARY_PATH"), names)))
    kernels = environment.get("TRITON_CACHE_DIR") or _kept(environment, "triton")
    return variables | ({"TRITON_CACHE_DIR": str(kernels)} if kernels else {})


def without_spaces(libraries: Path, run_dir: Path) -> Path:
    """A directory of libraries by a name without spaces, at which the loader splits LD_PRELOAD."""
    if " " not in str(libraries):
        return libraries
    name = hashlib.sha256(os.fsencode(libraries)).hexdigest()[:12]
    link = (_kept(os.environ, "libraries") or run_dir) / name
    with contextlib.suppress(FileExistsError):
        link.symlink_to(libraries, target_is_directory=True)
    return link


def unused_cache(environment: Mapping[str, str]) -> str | None:
    """Why the cache of Inductor that the environment names was not used; None: it names none."""
    directory = environment.get(_CHOICES)
    if not directory:
        return None
    return (
        f"{_CHOICES}={directory!r} was not used: a choice among kernels that was made on a "
        "simulated GPU must not reach a real one; kernels were timed as with an empty cache, and "
        "the lower end of what is reserved is that of a warm one"
    )


def _kept(environment: Mapping[str, str], name: str) -> Path | None:
    """A directory of the user's that outlives the run; None where there can be none."""
    try:
        base = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        directory = base / "ullage" / name
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return directory


def _link_libraries(directory: Path, environment: Mapping[str, str]) -> str:
    """A directory with the preloaded libraries under names without a version. What a program builds
    while it runs, such as FlashInfer's kernels, asks for -lcudart, and a toolkit of packages has
    libcudart.so.13 alone.
    """
    for path in map(Path, environment.get("LD_PRELOAD", "").split(":")):
        name, dot, _ = path.name.partition(".so.")
        link = directory / f"{name}.so"
        if dot and path.is_file() and not link.is_symlink():
            directory.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    return str(directory)


def _link_graphs(choices: Path, graphs: Path) -> None:
    """Lets Inductor find the graphs of earlier runs in its directory of this run."""
    with contextlib.suppress(OSError):  # without them it compiles all again
        choices.mkdir(parents=True, exist_ok=True)
        for name in _GRAPHS:
            (graphs / name).mkdir(exist_ok=True)
            link = choices / name
            if not link.is_symlink():
                link.symlink_to(graphs / name, target_is_directory=True)
