"""Backward in two parts: first that of the script, up to the outputs of the model's calls, then
that of the model, which can be run again.

The sums in the gradients are those of one backward: all calls of a model that it reaches run in
one, in which what a failed try has summed already is left out (runtime/again.py). Under
DistributedDataParallel the second try is run for the parameters alone whose gradients were not
summed, as the others have been given to the reduction (replica.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from ullage.errors import GuardError
from ullage.runtime.calls.graph import Reach
from ullage.runtime.calls.joint import record_of
from ullage.runtime.calls.losses import can_let_go
from ullage.runtime.calls.model_guard import ModelGuard, refusal
from ullage.runtime.calls.record import CallRecord
from ullage.runtime.failure import Failure, release, take_out_of_memory
from ullage.runtime.rerun import Rerun

Native = Callable[..., None]
_SCRIPT = "the script's own part of backward, such as the loss, is not run again"
_HALF = "; gradients have a part of the step's sums: zero them"


class Backward:
    """One backward that reaches calls of models.

    Args:
        native: `torch.autograd.backward`.
        reach: what it leads to.
        retains: whether the graph is kept.
    """

    def __init__(self, native: Native, reach: Reach, *, retains: bool) -> None:
        self._native = native
        self._reach = reach
        self._retains = retains
        self._parts = [
            (_ModelPart if guard.replica is None else _ReplicaPart)(
                native, guard, [each for each in reach.records if each.owner is guard],
                retains=retains,
            )
            for guard in dict.fromkeys(record.owner for record in reach.records)
        ]  # fmt: skip

    def run(self, tensors: Sequence[Any], grad_tensors: Any) -> None:
        """Runs both parts.

        Raises:
            torch.OutOfMemoryError: one of them has run out of memory, and was not recovered.
        """
        failure = self._run_script_part(tensors, grad_tensors)
        if failure is not None:
            self._run_script_part_again(tensors, grad_tensors, failure)
        for part in self._parts:
            part.run(failure)

    def _run_script_part(self, tensors: Sequence[Any], grad_tensors: Any) -> Failure | None:
        """Runs it up to the anchors: the records then have the gradients of their outputs."""
        records = self._reach.records
        if grad_tensors is None and len(tensors) == 1 and self._begins_with_outputs(tensors[0]):
            try:
                records[0].take_gradient(tensors[0])
            except RuntimeError as error:
                return take_out_of_memory(torch, error)
            return None
        inputs = [*self._reach.leaves, *(record.anchor for record in records)]
        for record in records:
            record.is_stopping = True
        try:
            self._native(tensors, grad_tensors, self._retains, inputs=inputs)
        except RuntimeError as error:
            return take_out_of_memory(torch, error)
        finally:
            for record in records:
                record.is_stopping = False
        return None

    def _begins_with_outputs(self, root: Any) -> bool:
        """Whether the script's part is empty: the loss is an output of a call of the model. Without
        a run of the engine's threads for it this part takes a tenth of the time.
        """
        is_output = not self._reach.leaves and record_of(root.grad_fn) is not None
        return is_output and root.numel() == 1 and not (root._backward_hooks or root.retains_grad)

    def _run_script_part_again(
        self, tensors: Sequence[Any], grad_tensors: Any, failure: Failure
    ) -> None:
        """Where the script's part has saved nothing, and sums nothing itself, it is run once more
        when the graphs of the models are let go.
        """
        has_hooks = any(each._backward_hooks for each in tensors)
        if self._reach.leaves or self._reach.has_functions or has_hooks:
            raise refusal(failure, _SCRIPT)
        for part in self._parts:
            part.let_go(failure)
        try:
            second = self._run_script_part(tensors, grad_tensors)
        except RuntimeError:  # what it had saved is gone
            raise refusal(failure, _SCRIPT) from None
        if second is not None:
            raise refusal(second, _SCRIPT)


class _ModelPart:
    """The backward of a model's calls."""

    def __init__(
        self, native: Native, guard: ModelGuard, records: Sequence[CallRecord], *, retains: bool
    ) -> None:
        self._native = native
        self._guard = guard
        self._records = records
        self._retains = retains

    def run(self, failure: Failure | None) -> None:
        """Runs it, and again under a leaner plan where it runs out of memory.

        Args:
            failure: of the script's part, for which the graph was let go.
        """
        for record in self._records:
            record.check_outputs()
        self._guard.gradients.take()
        let_go = [record.failure for record in self._records if record.failure is not None]
        failure = failure or (let_go[0] if let_go else None)
        # The last rung is enough where the graph was let go for the script's part.
        least = 1 if failure is None else 0
        if failure is None:
            failure = self._try(self._run_once)
        if failure is not None:
            self._recover(failure, least)
        if not self._retains:
            for record in self._records:
                record.finish()

    def let_go(self, failure: Failure) -> None:
        """Lets go of what the calls have saved for backward."""
        if not can_let_go(self._records):
            raise refusal(failure, "the model's graph leads to tensors that are not its parameters")
        for record in self._records:
            record.let_go(failure)
        release(torch)

    def _try(self, run: Callable[[], None]) -> Failure | None:
        try:
            run()
        except RuntimeError as error:
            return take_out_of_memory(torch, error)
        return None

    def _run_once(self) -> None:
        pairs = [pair for record in self._records for pair in record.pairs()]
        if pairs:
            outputs, gradients = zip(*pairs, strict=True)
            self._native(outputs, gradients, self._retains)

    def _run_again(self) -> None:
        self._guard.run_again(self._records)
        progress = self._guard.gradients.progress
        with nullcontext() if progress is None else Rerun(progress, is_closed=False):
            self._run_once()

    def _rewind(self) -> None:
        """After a failed try: drops what it made of gradients, and notes what it has summed."""
        self._guard.gradients.rewind()

    def _check(self) -> None:
        """After a second try that succeeded."""
        self._guard.gradients.check()

    def _is_half_done(self) -> bool:
        """Whether gradients have a part of the sums."""
        return self._guard.gradients.is_incomplete

    def _recover(self, failure: Failure, least: int) -> None:
        """Runs the calls and their backward again, on one rung after another.

        Args:
            failure: the first.
            least: how many rungs leaner the first must be at least.
        """
        gradients, ladder = self._guard.gradients, self._guard.ladder
        first, second = ladder.rung, failure
        try:
            for rung in range(min(first + 1, len(ladder) - 1 + least), len(ladder)):
                self.let_go(second)
                self._rewind()
                ladder.go_to(rung)
                failed = self._try(self._run_again)
                if failed is None:
                    self._check()
                    self._guard.note_recovery("backward", failure)
                    return
                second = failed
            self._rewind()
            raise self._guard.give_up(second, first)
        except GuardError as error:
            half = _HALF if self._is_half_done() else ""
            raise refusal(second, f"{error}{half}") from None
        finally:
            gradients.drop_stand_ins()


class _ReplicaPart(_ModelPart):
    """The same under DistributedDataParallel, whose hooks on parameters must run once each."""

    _remaining: Sequence[Any] | None = None

    def run(self, failure: Failure | None) -> None:
        if self._guard.replica is not None:
            self._guard.replica.begin_backward()
        super().run(failure)

    def _rewind(self) -> None:
        """Keeps what was summed."""
        replica = self._guard.replica
        summed = None if replica is None else replica.summed
        self._remaining = self._guard.gradients.untouched(summed)

    def _is_half_done(self) -> bool:
        return True

    def _check(self) -> None:
        replica = self._guard.replica
        if replica is not None:
            replica.check_reduced()

    def _run_once(self) -> None:
        pairs = [pair for record in self._records for pair in record.pairs()]
        if self._remaining is None or not pairs:
            super()._run_once()
        elif self._remaining:
            outputs, gradients = zip(*pairs, strict=True)
            self._native(outputs, gradients, self._retains, inputs=self._remaining)

    def _run_again(self) -> None:
        self._guard.run_again(self._records)
        self._run_once()
