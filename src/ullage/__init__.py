"""Ullage: how much of a GPU's memory a PyTorch program leaves, found out without the GPU.

    import ullage

    run = ullage.run(["train.py", "--batch-size", "16"], gpu="h100-80gb")
    print(run.devices[0].headroom_bytes)

Importing ullage is cheap: neither torch nor numpy is loaded, and each public name loads its module
when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ullage.api import Run, run
    from ullage.diffs import Diff, diff
    from ullage.errors import (
        BudgetExceeded,
        DeviceError,
        EnvironmentProblem,
        PlanError,
        SnapshotError,
        SpecError,
        UllageError,
    )
    from ullage.sweeps import Sweep, sweep

__version__ = "0.1.0"

__all__ = [
    "BudgetExceeded",
    "DeviceError",
    "Diff",
    "EnvironmentProblem",
    "PlanError",
    "Run",
    "SnapshotError",
    "SpecError",
    "Sweep",
    "UllageError",
    "__version__",
    "diff",
    "run",
    "sweep",
]

_MODULES = {
    "BudgetExceeded": "ullage.errors",
    "DeviceError": "ullage.errors",
    "Diff": "ullage.diffs",
    "EnvironmentProblem": "ullage.errors",
    "PlanError": "ullage.errors",
    "Run": "ullage.api",
    "SnapshotError": "ullage.errors",
    "SpecError": "ullage.errors",
    "Sweep": "ullage.sweeps",
    "UllageError": "ullage.errors",
    "diff": "ullage.diffs",
    "run": "ullage.api",
    "sweep": "ullage.sweeps",
}


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
