"""Guards a script that knows nothing of it: what a process of `ullage exec --guard` does before the
script's first line.

Optimizers are noted when they are created, and the modules with their parameters when they are
first called (call_guard.py).
"""

from __future__ import annotations

import atexit
import functools
import os
from types import ModuleType
from typing import Any

from ullage.protocol.run import GuardVariables, PlanVariables
from ullage.record.session.import_hooks import on_import
from ullage.record.session.tracebacks import show_clean_tracebacks
from ullage.runtime.calls.call_guard import CallGuard
from ullage.runtime.ladder import load_plans
from ullage.techniques.applying.outcome import State


def start() -> None:
    """Guards the models that this process trains, once it imports torch."""
    plans = GuardVariables.from_environment(os.environ).plans
    notes = PlanVariables.from_environment(os.environ).notes

    def install(torch: ModuleType) -> None:
        guard = CallGuard(load_plans(plans) if plans else None, notes=notes)
        guard.open()
        guard.note(State.WAITING, "the program imported torch, and made no optimizer")
        _note_optimizers(torch, guard)
        atexit.register(guard.say_count)

    on_import("torch", install)
    show_clean_tracebacks()


def _note_optimizers(torch: ModuleType, guard: CallGuard) -> None:
    kind = torch.optim.Optimizer
    make = kind.__init__

    @functools.wraps(make)
    def make_and_note(optimizer: Any, *arguments: Any, **keywords: Any) -> None:
        make(optimizer, *arguments, **keywords)
        guard.add_optimizer(optimizer)

    kind.__init__ = make_and_note
