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
    from ullage.api.alerts import AlertReplay, replay_alerts
    from ullage.api.capacity import Capacity, capacity
    from ullage.api.check import Check, check
    from ullage.api.diff import Diff, diff
    from ullage.api.estimate import Estimate, estimate_training
    from ullage.api.explain import Explanation, explain_file
    from ullage.api.fit import Fit, fit
    from ullage.api.ladder import FoundLadder, find_ladder
    from ullage.api.largest import Largest, largest
    from ullage.api.lock import Locked, lock
    from ullage.api.measure import measure
    from ullage.api.ranks import run_ranks
    from ullage.api.record import Recorded, read_recording, record_program
    from ullage.api.run import Run, run
    from ullage.api.serve import ServedTraffic, serve_traffic
    from ullage.api.servers.server_log import (
        ExplainedServer,
        ServerDiff,
        diff_servers,
        explain_server,
    )
    from ullage.api.servers.smallest import Smallest, smallest
    from ullage.api.sweep import Sweep, sweep
    from ullage.api.watch import read_samples, watch_gpus
    from ullage.api.what_if import WhatIf, what_if
    from ullage.caches.value_cache import ValueCache
    from ullage.errors import (
        BudgetExceeded,
        DeviceError,
        EnvironmentProblem,
        GuardError,
        PlanError,
        RequestTooLarge,
        SnapshotError,
        SpecError,
        UllageError,
    )
    from ullage.loaders.prefetch import prefetch
    from ullage.record.entrances.recording import record
    from ullage.runtime.adapting.adapt import Adapt
    from ullage.runtime.batch_split import split_rows
    from ullage.runtime.batches.split_check import SplitCheck, check_split
    from ullage.runtime.open_guard import guard
    from ullage.runtime.requests.inference import guard_inference
    from ullage.techniques.applying.cap import Cap, cap
    from ullage.techniques.plan import Plan
    from ullage.watch.sample import Sample

__all__ = [
    "Adapt",
    "AlertReplay",
    "BudgetExceeded",
    "Cap",
    "Capacity",
    "Check",
    "DeviceError",
    "Diff",
    "EnvironmentProblem",
    "Estimate",
    "ExplainedServer",
    "Explanation",
    "Fit",
    "FoundLadder",
    "GuardError",
    "Largest",
    "Locked",
    "Plan",
    "PlanError",
    "Recorded",
    "RequestTooLarge",
    "Run",
    "Sample",
    "ServedTraffic",
    "ServerDiff",
    "Smallest",
    "SnapshotError",
    "SpecError",
    "SplitCheck",
    "Sweep",
    "UllageError",
    "ValueCache",
    "WhatIf",
    "__version__",
    "cap",
    "capacity",
    "check",
    "check_split",
    "diff",
    "diff_servers",
    "estimate_training",
    "explain_file",
    "explain_server",
    "find_ladder",
    "fit",
    "guard",
    "guard_inference",
    "largest",
    "lock",
    "measure",
    "prefetch",
    "read_recording",
    "read_samples",
    "record",
    "record_program",
    "replay_alerts",
    "run",
    "run_ranks",
    "serve_traffic",
    "smallest",
    "split_rows",
    "sweep",
    "watch_gpus",
    "what_if",
]

_MODULES = {
    "Adapt": "ullage.runtime.adapting.adapt",
    "AlertReplay": "ullage.api.alerts",
    "BudgetExceeded": "ullage.errors",
    "Cap": "ullage.techniques.applying.cap",
    "Capacity": "ullage.api.capacity",
    "Check": "ullage.api.check",
    "DeviceError": "ullage.errors",
    "Diff": "ullage.api.diff",
    "EnvironmentProblem": "ullage.errors",
    "Estimate": "ullage.api.estimate",
    "ExplainedServer": "ullage.api.servers.server_log",
    "Explanation": "ullage.api.explain",
    "Fit": "ullage.api.fit",
    "FoundLadder": "ullage.api.ladder",
    "GuardError": "ullage.errors",
    "Largest": "ullage.api.largest",
    "Locked": "ullage.api.lock",
    "Plan": "ullage.techniques.plan",
    "PlanError": "ullage.errors",
    "Recorded": "ullage.api.record",
    "RequestTooLarge": "ullage.errors",
    "Run": "ullage.api.run",
    "Sample": "ullage.watch.sample",
    "ServedTraffic": "ullage.api.serve",
    "ServerDiff": "ullage.api.servers.server_log",
    "Smallest": "ullage.api.servers.smallest",
    "SnapshotError": "ullage.errors",
    "SpecError": "ullage.errors",
    "SplitCheck": "ullage.runtime.batches.split_check",
    "Sweep": "ullage.api.sweep",
    "UllageError": "ullage.errors",
    "ValueCache": "ullage.caches.value_cache",
    "WhatIf": "ullage.api.what_if",
    "cap": "ullage.techniques.applying.cap",
    "capacity": "ullage.api.capacity",
    "check": "ullage.api.check",
    "check_split": "ullage.runtime.batches.split_check",
    "diff": "ullage.api.diff",
    "diff_servers": "ullage.api.servers.server_log",
    "estimate_training": "ullage.api.estimate",
    "explain_file": "ullage.api.explain",
    "explain_server": "ullage.api.servers.server_log",
    "find_ladder": "ullage.api.ladder",
    "fit": "ullage.api.fit",
    "guard": "ullage.runtime.open_guard",
    "guard_inference": "ullage.runtime.requests.inference",
    "largest": "ullage.api.largest",
    "lock": "ullage.api.lock",
    "measure": "ullage.api.measure",
    "prefetch": "ullage.loaders.prefetch",
    "read_recording": "ullage.api.record",
    "read_samples": "ullage.api.watch",
    "record": "ullage.record",
    "record_program": "ullage.api.record",
    "replay_alerts": "ullage.api.alerts",
    "run": "ullage.api.run",
    "run_ranks": "ullage.api.ranks",
    "serve_traffic": "ullage.api.serve",
    "smallest": "ullage.api.servers.smallest",
    "split_rows": "ullage.runtime.batch_split",
    "sweep": "ullage.api.sweep",
    "watch_gpus": "ullage.api.watch",
    "what_if": "ullage.api.what_if",
}


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    loaded = import_module(module)
    # The package `record` is itself what its name stands for: it can be called.
    value = loaded if module == f"{__name__}.{name}" else getattr(loaded, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
