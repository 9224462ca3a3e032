"""A moving average of weights whose update is finished after an out-of-memory error within it.

The update follows the optimizer's step, so forward and backward cannot be run again. As with the
optimizer, version counters say what was executed, and the rest is done (rerun.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import MethodType
from typing import Any

import torch

from ullage.act.guard.failure import Failure, release, take_out_of_memory
from ullage.act.guard.optimizers.reasons import check_counters
from ullage.act.guard.progress import Progress
from ullage.act.guard.rerun import Rerun
from ullage.act.guard.sharded.local_tensors import is_sharded
from ullage.ground.errors import GuardError

_TRIES = 3


class GuardedAverage:
    """Puts itself around `update_parameters` of an average.

    Args:
        average: a `torch.optim.swa_utils.AveragedModel`.
        on_recovery: called with a failure after an update was finished.

    Attributes:
        has_run: whether an update has run to its end since `begin`.
    """

    def __init__(self, average: Any, on_recovery: Callable[[Failure], None]) -> None:
        self.has_run = False
        self._average = average
        self._on_recovery = on_recovery
        self._attribute: Any = None
        self._is_attached = False

    @property
    def reason(self) -> str | None:
        """Why an update that fails cannot be finished; None if it can."""
        if any(map(is_sharded, self._average.parameters())):
            return "the average has sharded weights, so its update is not finished"
        return None

    def begin(self) -> None:
        """Before a step of the guard."""
        self.has_run = False

    def attach(self) -> None:
        """Begins to watch `update_parameters`."""
        inner = self._average.update_parameters

        @functools.wraps(inner)
        def update_parameters(_: Any, *arguments: Any, **keywords: Any) -> None:
            if self._is_attached:
                self._update(inner, arguments, keywords)
            else:
                inner(*arguments, **keywords)

        self._attribute = MethodType(update_parameters, self._average)
        self._average.update_parameters = self._attribute
        self._is_attached = True

    def detach(self) -> None:
        """Ends that."""
        self._is_attached = False
        if vars(self._average).get("update_parameters") is self._attribute:
            del self._average.update_parameters

    def _update(self, inner: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        tensors = [*self._average.parameters(), *self._average.buffers()]
        before = [(tensor, tensor._version) for tensor in tensors]
        try:
            inner(*arguments, **keywords)
        except RuntimeError as error:
            failure = take_out_of_memory(torch, error)
        else:
            self.has_run = True
            return
        release(torch)
        try:
            if self.reason is not None:
                raise GuardError(self.reason)
            check_counters(tensors)
            self._finish(lambda: inner(*arguments, **keywords), before)
        except (GuardError, torch.OutOfMemoryError) as error:
            raise GuardError(
                f"{error} ({failure.text}); the average of the weights may be between two steps: "
                "go back to the last checkpoint"
            ) from None
        self.has_run = True
        self._on_recovery(failure)

    def _finish(self, update: Callable[[], None], before: list[tuple[Any, int]]) -> None:
        progress: Progress | None = None
        for _ in range(_TRIES):
            if progress is None:
                progress = Progress()
                for tensor, version in before:
                    progress.add(tensor, tensor._version - version)
            is_untouched = progress.is_untouched
            progress.begin()
            try:
                with nullcontext() if is_untouched else Rerun(progress, is_closed=True):
                    update()
            except RuntimeError as error:
                take_out_of_memory(torch, error)
            else:
                progress.check()
                return
            release(torch)
            if is_untouched:
                progress = None  # version counters say how far this one got
        raise GuardError("there is no memory for the rest of the average's update")
