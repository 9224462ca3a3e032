"""Programs of other frameworks than PyTorch: named, as nothing of theirs is measured.

JAX and TensorFlow have allocators of their own and load CUDA's libraries by themselves. A process
that imports one of them, and not PyTorch, leaves a file in the run's directory that says so.

    PID.framework       the framework's name
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Container
from pathlib import Path

_SUFFIX = ".framework"
_FRAMEWORKS = {"jax": "JAX", "tensorflow": "TensorFlow", "paddle": "PaddlePaddle", "mxnet": "MXNet"}


def note_framework(run_dir: Path) -> None:
    """Has this process say at its end which framework it used in place of PyTorch."""
    pid = os.getpid()

    def note() -> None:
        names = [name for module, name in _FRAMEWORKS.items() if module in sys.modules]
        if names and "torch" not in sys.modules and os.getpid() == pid:
            with contextlib.suppress(OSError):
                (run_dir / f"{pid}{_SUFFIX}").write_text(names[0], encoding="utf-8")

    atexit.register(note)


def other_frameworks(run_dir: Path, recorded: Container[int]) -> tuple[str, ...]:
    """A sentence for each framework that a process used in place of PyTorch.

    recorded: the processes that used PyTorch on a device.
    """
    notes = sorted(run_dir.glob(f"*{_SUFFIX}"))
    names = [path.read_text(encoding="utf-8") for path in notes if int(path.stem) not in recorded]
    return tuple(
        f"the program uses {name} without PyTorch: ullage measures PyTorch's memory alone, and the "
        f"phantom GPU does not run {name}"
        for name in dict.fromkeys(names)
    )
