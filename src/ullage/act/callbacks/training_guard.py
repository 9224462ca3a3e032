"""A guard of the training step of a framework, which begins and ends with a training."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from ullage.act.guard.open_guard import guard
from ullage.act.techniques.applying.changes import Changes
from ullage.act.techniques.plan import Plan

if TYPE_CHECKING:
    from ullage.act.guard.guard import Guard

Plans: TypeAlias = str | os.PathLike[str] | Iterable[Plan | str | os.PathLike[str]] | None


class TrainingGuard:
    """Has each call of a framework's own training step run by a guard.

    Args:
        plans: as those of `ullage.guard`.
        options: the same.

    Attributes:
        guard: of the training; None: before it, and after it.
    """

    def __init__(self, plans: Plans = None, **options: object) -> None:
        self.guard: Guard | None = None
        self._plans = plans if plans is None or isinstance(plans, str | os.PathLike) else [*plans]
        self._options = options
        self._changes = Changes()

    def begin(
        self,
        owner: object,
        name: str,
        model: object,
        optimizer: object,
        *,
        scaler: object = None,
        extra: Sequence[object] = (),
    ) -> None:
        """The training begins. The guard of before, whose training failed, ends now.

        Args:
            owner: has the training step.
            name: of that method.
            model, optimizer, scaler, extra: as for `ullage.guard`.

        Raises:
            SpecError: a compiled or replicated model, or an invalid option.
            PlanError: a plan cannot be a rung.
        """
        self.end()
        self.guard = guard(
            model, optimizer, plans=self._plans, scaler=scaler, extra=extra,
            **self._options,  # type: ignore[arg-type]
        )  # fmt: skip
        self.guard.__enter__()
        self._changes.set(owner, name, partial(self.guard.step, getattr(owner, name)))

    def end(self) -> None:
        """The training has ended."""
        if self.guard is not None:
            self._changes.undo()
            self.guard.__exit__(None, None, None)
            self.guard = None
