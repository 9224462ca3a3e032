"""Where torch's compiler keeps what it made.

Inductor chooses kernels by timing them and remembers the choice. On the phantom no time is
measured, so the choice means nothing, and a GPU that is here must not find it: each run has a
directory of its own for it, and compiles as on a machine that has not run the program yet. Triton's
compiled kernels depend on nothing but their source and the GPU's architecture; they are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def compiler_variables(run_dir: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that direct the compiler's caches.

    Args:
        run_dir: a directory that is removed after the run.
        environment: what the run would have otherwise.
    """
    variables = {
        "TORCHINDUCTOR_CACHE_DIR": str(run_dir / "inductor"),
        "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "0",
        "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE": "0",
        "TRITON_CACHE_AUTOTUNING": "0",
        "VLLM_CACHE_ROOT": str(run_dir / "vllm"),  # it keeps what Inductor made, and choices
    }
    kernels = environment.get("TRITON_CACHE_DIR") or _kernels(environment)
    return variables | ({"TRITON_CACHE_DIR": kernels} if kernels else {})


def _kernels(environment: Mapping[str, str]) -> str | None:
    """A directory of the user's for kernels; None where there can be none."""
    try:
        base = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        directory = base / "ullage" / "triton"
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return str(directory)
