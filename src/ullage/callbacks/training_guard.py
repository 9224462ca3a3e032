"""A guard that begins and ends with a training."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import ClassVar, TypeAlias

from ullage.runtime.calls.call_guard import CallGuard, guard_model
from ullage.techniques.plan import Plan

Plans: TypeAlias = Iterable[Plan | str | os.PathLike[str]] | None


class TrainingGuard:
    """Opens and closes a guard.

    Args:
        plans: as those of `ullage.guard_model`.
        options: the same.

    Attributes:
        guard: of the training; None before the first.
    """

    # No framework tells a callback that a training failed, and only one guard can be open.
    _open: ClassVar[list[TrainingGuard]] = []

    def __init__(self, plans: Plans = None, **options: int) -> None:
        self.guard: CallGuard | None = None
        self._plans = None if plans is None else list(plans)
        self._options = options

    def begin(self, model: object, optimizer: object) -> None:
        """The training begins. A guard of before, whose training failed, ends now.

        Raises:
            SpecError: several ranks, a compiled or replicated model, or an invalid option.
            PlanError: a plan cannot be a rung.
        """
        for training in [*self._open]:
            training.end()
        self.guard = guard_model(model, optimizer, plans=self._plans, **self._options)
        self.guard.open()
        self._open.append(self)

    def end(self) -> None:
        """The training has ended."""
        if self in self._open:
            self._open.remove(self)
        if self.guard is not None:
            self.guard.close()
