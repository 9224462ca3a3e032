"""Runs a part of a step again, and leaves out the in-place operations that were executed already.

A version counter says how many in-place operations a tensor has had, so the first `executed` of
those that the second run wants to do are left out, and the others are done. Results of other
operations are computed again. Where an operand has changed since the first run, the result is
marked, as its value is lost; an operation that needs a lost value is refused.

    progress = Progress()
    progress.add(parameter, parameter._version - version_before)
    with Rerun(progress, is_closed=True):
        ...                         # what was run before, up to where it failed
    progress.check()

Tensors of a list are told apart one by one. In-place operations that do not move version counters
are left out or done by other evidence, or refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ullage.act.guard.call import Call, Key, memory_key, tensors_in
from ullage.act.guard.progress import Entry, Progress, refuse_lost
from ullage.act.guard.sharded.local_tensors import are_fake, have_parts
from ullage.act.guard.sharded.shared_step import Recording, is_collective
from ullage.ground.errors import GuardError

_UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"


class Rerun(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
    """Leaves out in-place operations that `progress` says were executed.

    Args:
        progress: of the failed try.
        is_closed: whether the operations may write only to tensors of `progress` and to those that
            they make themselves; others are refused.
        recording: of the collectives of the failed try, which are not run again.
    """

    def __init__(
        self, progress: Progress, *, is_closed: bool, recording: Recording | None = None
    ) -> None:
        super().__init__()
        self._recording = recording
        self._progress = progress
        self._is_closed = is_closed
        self._own: set[Key] = set()
        self._added: dict[tuple[Any, ...], int | None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if are_fake(types):
            return func(*args, **(kwargs or {}))
        if have_parts(types):
            return NotImplemented
        call = Call(func, args, kwargs or {})
        if self._recording is not None:
            if is_collective(func):
                return self._give(call, self._recording)
            if func.namespace == "c10d":
                self._recording.note_other()
            self._recording.note_written(call.changed)
        if call.rows:
            return self._run_rows(call)
        if call.written:
            return self._write(call)
        return self._read(call)

    def _read(self, call: Call) -> Any:
        """An operation that writes to none of its operands."""
        operands = call.tensors
        is_lost = self._progress.are_lost(operands)
        result = call.run()
        shared = {memory_key(tensor) for tensor in operands}
        outputs = list(tensors_in(result))
        if is_lost and not outputs:
            refuse_lost()
        for output in outputs:
            # torch.tensor makes a tensor past the mode, which is met here first.
            if memory_key(output) not in shared or call.name == "lift_fresh":
                self._own.add(memory_key(output))
                self._progress.mark(output, is_lost=is_lost)
        return result

    def _give(self, call: Call, recording: Recording) -> Any:
        """A collective of a step of an optimizer: its result of the failed try, or another."""
        is_recorded = recording.has_next
        if not is_recorded and self._progress.are_lost(call.tensors):
            refuse_lost()
        result = recording.run(call.func, call.arguments, call.keywords)
        for output in tensors_in(result):
            self._own.add(memory_key(output))
            self._progress.mark(output, is_lost=False)
        return result

    def _write(self, call: Call) -> Any:
        """An in-place operation on one or more tensors outside lists."""
        progress = self._progress
        entries = [progress.find(tensor) for tensor in call.written]
        if not any(entries):
            is_lost = progress.are_lost(call.tensors)
            for tensor in call.written:
                self._check_own(tensor)
                progress.mark(tensor, is_lost=is_lost)
            return call.run()
        if len(call.written) != 1 or entries[0] is None:
            raise GuardError(f"{call.name} changes several tensors at once, which is not followed")
        (target,), entry = call.written, entries[0]
        if self._is_executed(call, None, target, entry):
            entry.leave_out()
            return target
        if progress.are_lost(call.tensors):
            refuse_lost()
        result = call.run()
        progress.go_on(entry)
        return result

    def _is_executed(self, call: Call, row: int | None, target: Any, entry: Entry) -> bool:
        check_counter(target, entry.tensor)
        if not self._progress.has_gone_on and not self._counts(call, row):
            _refuse_uncounted(call)
        return entry.executed > entry.met

    def _run_rows(self, call: Call) -> Any:
        """An operation on lists of tensors, row by row."""
        progress = self._progress
        if not call.written:
            losses = [progress.are_lost(call.tensors_of(row)) for row in call.rows]
            result = call.run()
            for output, is_lost in zip(result, losses, strict=True):
                self._own.add(memory_key(output))
                progress.mark(output, is_lost=is_lost)
            return result
        if call.name == _UNSCALE and not progress.has_gone_on and self._is_tracked(call):
            return self._unscale(call)
        rows = [row for row in call.rows if not self._leaves_out_row(call, row)]
        for row in rows:
            is_lost = progress.are_lost(call.tensors_of(row))
            for target in call.written_of(row):
                if is_lost and progress.find(target) is not None:
                    refuse_lost()
                progress.mark(target, is_lost=is_lost)
        result = call.run_rows(rows) if rows else None
        for target in [target for row in rows for target in call.written_of(row)]:
            entry = progress.find(target)
            if entry is not None:
                progress.go_on(entry)
        return result

    def _is_tracked(self, call: Call) -> bool:
        return any(progress is not None for progress in map(self._progress.find, call.written))

    def _unscale(self, call: Call) -> Any:
        """Divides gradients by the loss scale if the failed try has not; if it has, looks for
        infinite ones only.
        """
        if self._progress.is_unscaled is None:
            _refuse_uncounted(call)
        gradients, found_inf, inverse = call.arguments
        if self._progress.is_unscaled:
            if inverse.item() > 1:
                raise GuardError("the loss scale is below 1, so infinite gradients may be its own")
            return call.func(gradients, found_inf, torch.ones_like(inverse))
        return call.run()

    def _leaves_out_row(self, call: Call, row: int) -> bool:
        """True if a row was executed in the failed try; if so it is counted as met."""
        targets = call.written_of(row)
        pairs = [(target, self._progress.find(target)) for target in targets]
        entries = [entry for _, entry in pairs if entry is not None]
        if not entries:
            for target in targets:
                self._check_own(target)
            return False
        if call.is_fused:
            return self._leaves_out_fused(call, row, entries)
        if len(targets) != 1:
            if not self._progress.has_gone_on:
                _refuse_uncounted(call)
            return False
        if not self._is_executed(call, row, targets[0], entries[0]):
            return False
        entries[0].leave_out()
        return True

    def _leaves_out_fused(self, call: Call, row: int, entries: Sequence[Entry]) -> bool:
        """A fused update moves no version counters; it follows the count of steps, which does, and
        nothing is allocated between the two. One on parts of sharded tensors has moved
        those of the parameters.
        """
        if self._recording is not None:
            parameter = self._progress.find(call.written_of(row)[0])
            if parameter is None:
                _refuse_uncounted(call)
            if parameter.executed > parameter.met:
                parameter.leave_out()
                return True
            return False
        count = call.count_of_steps(row)
        entry = None if count is None else self._progress.find(count)
        if entry is None:
            # Where only gradients are followed, the guard knows that the optimizer has not run.
            if count is not None and (not self._is_closed or memory_key(count) in self._own):
                return False
            _refuse_uncounted(call)
        if entry.was_left_out:
            for each in entries:
                each.met = each.executed
        return entry.was_left_out

    def _counts(self, call: Call, row: int | None) -> bool:
        """True if an operator adds one to the version counter of what it changes."""
        kind = call.kind(row)
        if kind not in self._added:
            is_random = torch.Tag.nondeterministic_seeded in call.func.tags
            added = None if is_random else _without_modes(lambda: call.try_counter(row))
            self._added[kind] = added
        return self._added[kind] == 1

    def _check_own(self, tensor: Any) -> None:
        if self._is_closed and tensor.numel() and memory_key(tensor) not in self._own:
            raise GuardError(
                "the optimizer changes a tensor other than its parameters, gradients and states"
            )


def _without_modes(run: Callable[[], int]) -> int | None:
    """The result of a function in a thread of its own, where no mode is on; None after an error."""
    results: list[int] = []

    def run_there() -> None:
        with torch.no_grad(), suppress(Exception):
            results.append(run())

    thread = threading.Thread(target=run_there, name="ullage-guard")
    thread.start()
    thread.join()
    return results[0] if results else None


def check_counter(alias: Any, tensor: Any) -> None:
    """Raises GuardError if a view of a tensor, as `.data` is, has a version counter of its own."""
    if alias is tensor:
        return
    before = tensor._version
    torch.autograd.graph.increment_version(alias)
    if tensor._version != before + 1:
        raise GuardError("a parameter, gradient or state is changed past its version counter")


def _refuse_uncounted(call: Call) -> NoReturn:
    raise GuardError(f"{call.name} does not move version counters, and may have been run already")
