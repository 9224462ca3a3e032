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

from ullage.ground.version import __version__

if TYPE_CHECKING:
    from ullage.act.caches.value_cache import ValueCache
    from ullage.act.guard.adapting.adapt import Adapt
    from ullage.act.guard.batch_split import split_rows
    from ullage.act.guard.batches.split_check import SplitCheck, check_split
    from ullage.act.guard.open_guard import guard
    from ullage.act.guard.requests.inference import guard_inference
    from ullage.act.loaders.prefetch import prefetch
    from ullage.act.techniques.applying.cap import Cap, cap
    from ullage.act.techniques.plan import Plan
    from ullage.ground.errors import (
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
    from ullage.players.inside.entrances.recording import record
    from ullage.verbs.capacity.function import Capacity, capacity
    from ullage.verbs.check.function import Check, check
    from ullage.verbs.check.lock_function import Locked, lock
    from ullage.verbs.diff.function import Diff, diff
    from ullage.verbs.estimate.function import Estimate, estimate_training
    from ullage.verbs.explain.function import Explanation, explain_file
    from ullage.verbs.explain.server_log_function import (
        ExplainedServer,
        ServerDiff,
        diff_servers,
        explain_server,
    )
    from ullage.verbs.fit.function import Fit, fit
    from ullage.verbs.fit.ladder_function import FoundLadder, find_ladder
    from ullage.verbs.largest.function import Largest, largest
    from ullage.verbs.record.function import Recorded, read_recording, record_program
    from ullage.verbs.run.function import Run, run
    from ullage.verbs.run.measure_function import measure
    from ullage.verbs.run.ranks_function import run_ranks
    from ullage.verbs.run.sweep_function import Sweep, sweep
    from ullage.verbs.serve.function import ServedTraffic, serve_traffic
    from ullage.verbs.smallest.function import Smallest, smallest
    from ullage.verbs.watch.alerts_function import AlertReplay, replay_alerts
    from ullage.verbs.watch.function import Sample, read_samples, watch_gpus
    from ullage.verbs.what_if.function import WhatIf, what_if

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
    "Adapt": "ullage.act.guard.adapting.adapt",
    "AlertReplay": "ullage.verbs.watch.alerts_function",
    "BudgetExceeded": "ullage.ground.errors",
    "Cap": "ullage.act.techniques.applying.cap",
    "Capacity": "ullage.verbs.capacity.function",
    "Check": "ullage.verbs.check.function",
    "DeviceError": "ullage.ground.errors",
    "Diff": "ullage.verbs.diff.function",
    "EnvironmentProblem": "ullage.ground.errors",
    "Estimate": "ullage.verbs.estimate.function",
    "ExplainedServer": "ullage.verbs.explain.server_log_function",
    "Explanation": "ullage.verbs.explain.function",
    "Fit": "ullage.verbs.fit.function",
    "FoundLadder": "ullage.verbs.fit.ladder_function",
    "GuardError": "ullage.ground.errors",
    "Largest": "ullage.verbs.largest.function",
    "Locked": "ullage.verbs.check.lock_function",
    "Plan": "ullage.act.techniques.plan",
    "PlanError": "ullage.ground.errors",
    "Recorded": "ullage.verbs.record.function",
    "RequestTooLarge": "ullage.ground.errors",
    "Run": "ullage.verbs.run.function",
    "Sample": "ullage.verbs.watch.function",
    "ServedTraffic": "ullage.verbs.serve.function",
    "ServerDiff": "ullage.verbs.explain.server_log_function",
    "Smallest": "ullage.verbs.smallest.function",
    "SnapshotError": "ullage.ground.errors",
    "SpecError": "ullage.ground.errors",
    "SplitCheck": "ullage.act.guard.batches.split_check",
    "Sweep": "ullage.verbs.run.sweep_function",
    "UllageError": "ullage.ground.errors",
    "ValueCache": "ullage.act.caches.value_cache",
    "WhatIf": "ullage.verbs.what_if.function",
    "cap": "ullage.act.techniques.applying.cap",
    "capacity": "ullage.verbs.capacity.function",
    "check": "ullage.verbs.check.function",
    "check_split": "ullage.act.guard.batches.split_check",
    "diff": "ullage.verbs.diff.function",
    "diff_servers": "ullage.verbs.explain.server_log_function",
    "estimate_training": "ullage.verbs.estimate.function",
    "explain_file": "ullage.verbs.explain.function",
    "explain_server": "ullage.verbs.explain.server_log_function",
    "find_ladder": "ullage.verbs.fit.ladder_function",
    "fit": "ullage.verbs.fit.function",
    "guard": "ullage.act.guard.open_guard",
    "guard_inference": "ullage.act.guard.requests.inference",
    "largest": "ullage.verbs.largest.function",
    "lock": "ullage.verbs.check.lock_function",
    "measure": "ullage.verbs.run.measure_function",
    "prefetch": "ullage.act.loaders.prefetch",
    "read_recording": "ullage.verbs.record.function",
    "read_samples": "ullage.verbs.watch.function",
    "record": "ullage.players.inside",
    "record_program": "ullage.verbs.record.function",
    "replay_alerts": "ullage.verbs.watch.alerts_function",
    "run": "ullage.verbs.run.function",
    "run_ranks": "ullage.verbs.run.ranks_function",
    "serve_traffic": "ullage.verbs.serve.function",
    "smallest": "ullage.verbs.smallest.function",
    "split_rows": "ullage.act.guard.batch_split",
    "sweep": "ullage.verbs.run.sweep_function",
    "watch_gpus": "ullage.verbs.watch.function",
    "what_if": "ullage.verbs.what_if.function",
}


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    loaded = import_module(module)
    # The recorder's package is itself what `record` stands for: it can be called.
    value = loaded if name == "record" else getattr(loaded, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
