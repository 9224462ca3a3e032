"""Ullage finds how much GPU memory a PyTorch program needs, without the GPU.

    import ullage

    run = ullage.run(["train.py", "--batch-size", "16"], gpu="h100-80gb")
    print(run.devices[0].headroom_bytes)

Importing ullage is cheap: neither torch nor numpy is loaded, and each public name loads its module
when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ullage.version import __version__

if TYPE_CHECKING:
    from ullage.api.check import Check, check
    from ullage.api.diff import Diff, diff
    from ullage.api.estimate import Estimate, estimate_training
    from ullage.api.explain import Explanation, explain_file
    from ullage.api.fit import Fit, fit
    from ullage.api.largest import Largest, find_largest
    from ullage.api.lock import Locked, lock
    from ullage.api.ranks import run_ranks
    from ullage.api.run import Run, run
    from ullage.api.segments import Segmentations, compare_segments
    from ullage.api.serving import ServingAnswer, estimate_serving
    from ullage.api.sweep import Sweep, sweep
    from ullage.api.what_if import WhatIf, what_if
    from ullage.errors import (
        BudgetExceeded,
        DeviceError,
        EnvironmentProblem,
        PlanError,
        SnapshotError,
        SpecError,
        UllageError,
    )
    from ullage.techniques.plan import Plan

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
    "Check": "ullage.api.check",
    "DeviceError": "ullage.errors",
    "Diff": "ullage.api.diff",
    "EnvironmentProblem": "ullage.errors",
    "Estimate": "ullage.api.estimate",
    "Explanation": "ullage.api.explain",
    "Fit": "ullage.api.fit",
    "Largest": "ullage.api.largest",
    "Locked": "ullage.api.lock",
    "Plan": "ullage.techniques.plan",
    "PlanError": "ullage.errors",
    "Run": "ullage.api.run",
    "Segmentations": "ullage.api.segments",
    "ServingAnswer": "ullage.api.serving",
    "SnapshotError": "ullage.errors",
    "SpecError": "ullage.errors",
    "Sweep": "ullage.api.sweep",
    "UllageError": "ullage.errors",
    "WhatIf": "ullage.api.what_if",
    "check": "ullage.api.check",
    "compare_segments": "ullage.api.segments",
    "diff": "ullage.api.diff",
    "estimate_serving": "ullage.api.serving",
    "estimate_training": "ullage.api.estimate",
    "explain_file": "ullage.api.explain",
    "find_largest": "ullage.api.largest",
    "fit": "ullage.api.fit",
    "lock": "ullage.api.lock",
    "run": "ullage.api.run",
    "run_ranks": "ullage.api.ranks",
    "sweep": "ullage.api.sweep",
    "what_if": "ullage.api.what_if",
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
