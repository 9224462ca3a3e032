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
    from ullage.checks import Check, Locked, check, lock
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
    from ullage.estimates import Estimate, ServingAnswer, estimate_serving, estimate_training
    from ullage.explanations import Explanation, explain_file
    from ullage.fits import Fit, fit
    from ullage.largest import Largest, find_largest
    from ullage.ranks import run_ranks
    from ullage.segmentations import Segmentations, compare_segments
    from ullage.sweeps import Sweep, sweep
    from ullage.techniques.plan import Plan
    from ullage.what_ifs import WhatIf, what_if

__version__ = "0.1.0"

__all__ = [
    "BudgetExceeded",
    "Check",
    "DeviceError",
    "Diff",
    "EnvironmentProblem",
    "Estimate",
    "Explanation",
    "Fit",
    "Largest",
    "Locked",
    "Plan",
    "PlanError",
    "Run",
    "Segmentations",
    "ServingAnswer",
    "SnapshotError",
    "SpecError",
    "Sweep",
    "UllageError",
    "WhatIf",
    "__version__",
    "check",
    "compare_segments",
    "diff",
    "estimate_serving",
    "estimate_training",
    "explain_file",
    "find_largest",
    "fit",
    "lock",
    "run",
    "run_ranks",
    "sweep",
    "what_if",
]

_MODULES = {
    "BudgetExceeded": "ullage.errors",
    "Check": "ullage.checks",
    "DeviceError": "ullage.errors",
    "Diff": "ullage.diffs",
    "EnvironmentProblem": "ullage.errors",
    "Estimate": "ullage.estimates",
    "Explanation": "ullage.explanations",
    "Fit": "ullage.fits",
    "Largest": "ullage.largest",
    "Locked": "ullage.checks",
    "Plan": "ullage.techniques.plan",
    "PlanError": "ullage.errors",
    "Run": "ullage.api",
    "Segmentations": "ullage.segmentations",
    "ServingAnswer": "ullage.estimates",
    "SnapshotError": "ullage.errors",
    "SpecError": "ullage.errors",
    "Sweep": "ullage.sweeps",
    "UllageError": "ullage.errors",
    "WhatIf": "ullage.what_ifs",
    "check": "ullage.checks",
    "compare_segments": "ullage.segmentations",
    "diff": "ullage.diffs",
    "estimate_serving": "ullage.estimates",
    "estimate_training": "ullage.estimates",
    "explain_file": "ullage.explanations",
    "find_largest": "ullage.largest",
    "fit": "ullage.fits",
    "lock": "ullage.checks",
    "run": "ullage.api",
    "run_ranks": "ullage.ranks",
    "sweep": "ullage.sweeps",
    "what_if": "ullage.what_ifs",
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
