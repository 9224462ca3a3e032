"""Runs the calls of one model, and runs those again that run out of memory.

A call that fails runs again at once, under the next rung. A call that has succeeded can run again
until its backward is done: its record holds its inputs and the state before it. Of several ranks
each runs its own calls again; afterwards all have the rung of the leanest (shared_rung.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ullage.errors import GuardError
from ullage.record.owners.module_trees import class_name
from ullage.runtime.calls.activity import Activity
from ullage.runtime.calls.joint import Bundle, join
from ullage.runtime.calls.record import CallRecord
from ullage.runtime.calls.replica import Replica
from ullage.runtime.calls.shared_rung import SharedRung, open_shared_rung
from ullage.runtime.calls.snapshot import Snapshot
from ullage.runtime.calls.tensor_places import replace_tensors, tensors_of
from ullage.runtime.climb import Climb
from ullage.runtime.failure import Failure, release, say, take_out_of_memory
from ullage.runtime.gradients import Gradients
from ullage.runtime.ladder import Ladder
from ullage.techniques.applying.changes import Changes

_AFTER_CALLS = 2


class ModelGuard:
    """Guards the calls of a model and of its parts.

    Args:
        top: the outermost module.
        parameters: of it and of the optimizers, each once.
        ladder: the rungs.
        calm: when to go back up.
        activity: of all models.
        replica: what DistributedDataParallel is around it; None: it is not replicated.

    Attributes:
        ladder: the rungs.
        gradients: those of all parameters.
        replica: the same.
    """

    def __init__(
        self,
        top: Any,
        parameters: Sequence[Any],
        ladder: Ladder,
        *,
        calm: Climb,
        activity: Activity,
        replica: Replica | None = None,
    ) -> None:
        self.replica = replica
        self._shared = None if replica is None else open_shared_rung(replica.rank)
        self._late: tuple[CallRecord, Any] | None = None
        self._num_collectives = 0
        self.ladder = ladder
        self.gradients = Gradients(parameters)
        self._calm = calm
        self._has_recovered = False
        self.name = class_name(top)
        self._top = top
        self._known = set(map(id, parameters))
        self._device_types = tuple(sorted({"cpu", *(each.device.type for each in parameters)}))
        self._parameters = parameters
        self._modules = list(top.modules())
        self._bundle: Bundle | None = None
        self._pool: dict[Any, list[Snapshot]] = {}
        self._slots: list[tuple[dict[str, Any], str]] = []
        self._activity = activity
        self._num_calls = 0
        self._changes = Changes()
        self._said: set[str] = set()
        self._own: dict[Any, set[int]] = {}
        calm.begin(ladder.rung)

    def owns(self, record: CallRecord, tensor: Any) -> bool:
        """Whether a tensor is a parameter of what a record is a call of."""
        if record.module not in self._own:
            self._own[record.module] = set(map(id, record.module.parameters()))
        return id(tensor) in self._own[record.module]

    def knows(self, parameter: Any) -> bool:
        """Whether a tensor is a parameter of the model or of the optimizers."""
        return id(parameter) in self._known

    def attach(self, module: Any) -> None:
        """Guards the calls of the model, or of a part that the script calls itself."""
        # What torch calls in place of a module's forward and its hooks. A copy does not have it.
        self._changes.set(module, "_compiled_call_impl", partial(self._call, module))

    def attach_wrapper(self, wrapper: Any, replica: Replica) -> None:
        """Joins calls after DDP has looked at their graph, where it does."""
        replica.watch_sums(self._changes)
        if not replica.joins_late:
            return
        after = wrapper._post_forward

        def join_after(output: Any) -> Any:
            result = after(output)
            late, self._late = self._late, None
            # Only of what the model has returned to DDP in this call.
            return result if late is None or late[1] is not output else self._join(late[0], result)

        self._changes.set(wrapper, "_post_forward", join_after)

    def detach(self) -> None:
        """Ends that, and undoes the plan."""
        self._changes.undo()
        self.ladder.close()

    def _call(self, module: Any, *arguments: Any, **keywords: Any) -> Any:
        """A call of a guarded module by the script or by another module."""
        is_own = self._activity.is_idle and torch.is_grad_enabled()
        if not is_own or torch.compiler.is_compiling():
            return module._call_impl(*arguments, **keywords)
        with self._activity.busy():
            record = self._begin(module, arguments, keywords)
            if record is None:
                return module._call_impl(*arguments, **keywords)
            try:
                return self._run(record)
            except RuntimeError as error:
                failure = take_out_of_memory(torch, error)
            return self._recover(record, failure)

    def _begin(self, module: Any, arguments: Any, keywords: Any) -> CallRecord | None:
        """Notes the state before a call; None where there is no memory for that."""
        self._num_calls += 1
        snapshots = self._pool.setdefault(module, [])
        snapshot = self._take(snapshots.pop() if snapshots else None, module)
        if snapshot is None:
            release(torch)
            snapshot = self._take(None, module)
        if snapshot is None:
            self.say_once("there is no memory to copy buffers, so a call is not run again")
            return None
        record = CallRecord(
            self, module, (arguments, keywords), snapshot,
            number=self._num_calls, device_types=self._device_types,
        )  # fmt: skip
        record.pool = snapshots
        return record

    def _take(self, snapshot: Snapshot | None, module: Any) -> Snapshot | None:
        """The state now; None where there is no memory for it."""
        snapshot = snapshot or Snapshot(module, self._parameters, None, ())
        try:
            snapshot.take()
        except RuntimeError as error:
            take_out_of_memory(torch, error)
            return None
        return snapshot

    def _run(self, record: CallRecord) -> Any:
        """Calls the module, and puts the joint between its graph and that of the script."""
        replica = self.replica
        if replica is None:
            return self._join(record, record.run())
        self._num_collectives = replica.count_collectives()
        value = record.run()
        if self._has_collectives(record):
            return value
        if replica.joins_late and replica.is_calling:
            self._late = record, value
            return value
        return self._join(record, value)

    def _has_collectives(self, record: CallRecord) -> bool:
        """Whether a call that has just run has begun collectives."""
        replica = self.replica
        if replica is None or replica.count_collectives() == self._num_collectives:
            return False
        self.say_once(
            f"calls of {class_name(record.module)} are not run again: it has collectives of its "
            "own, as SyncBatchNorm, which the other ranks would not run again"
        )
        return True

    def _join(self, record: CallRecord, value: Any) -> Any:
        """What the script gets for the outputs of a call: the ends of a graph of its own."""
        outputs = self._outputs_of(record, value)
        if not outputs:
            return value
        if self._bundle is None:
            self._bundle = Bundle([*self._top.parameters()])
        record.take_outputs(outputs)
        places = dict(zip(map(id, outputs), join(record, self._bundle), strict=True))
        for owner, name in self._slots:
            if id(owner.get(name)) in places:
                owner[name] = places[id(owner[name])]
        record.snapshot.learn()
        return replace_tensors(value, lambda tensor: places.get(id(tensor), tensor))

    def _outputs_of(self, record: CallRecord, value: Any) -> list[Any]:
        """The tensors with a graph that the script can get at after a call; empty where the guard
        leaves the call's graph to the script.
        """
        inputs = set(map(id, record.inputs))
        if any(each.requires_grad and not self.knows(each) for each in record.inputs):
            self.say_once(
                f"only forward is run again where the inputs of {class_name(record.module)} need "
                "gradients, not its backward"
            )
            return []
        if self._num_calls <= _AFTER_CALLS:
            self._slots = _find_slots(self._modules)
        attributes = [owner.get(name) for owner, name in self._slots]
        outputs = [
            each
            for each in tensors_of([value, attributes])
            if each.grad_fn is not None and id(each) not in inputs
        ]
        if any(type(each) is not torch.Tensor for each in outputs):
            self.say_once("only forward is run again: the model returns tensors of another kind")
            return []
        return outputs

    def _recover(self, record: CallRecord, failure: Failure) -> Any:
        """Runs a call that has failed on one rung after another."""
        first = rung = self.ladder.rung
        while True:
            release(torch)
            if self._has_collectives(record):
                raise refusal(failure, "the model's call has collectives of its own")
            # A plan has put attributes on modules: the state is that of the rung before the call.
            self.ladder.go_to(first)
            try:
                record.snapshot.rewind()
                record.check_inputs()
            except GuardError as error:
                raise refusal(failure, str(error)) from None
            rung += 1
            if rung == len(self.ladder):
                self.ladder.go_to(max(first, rung - 1))
                raise self.give_up(failure, first)
            self.ladder.go_to(rung)
            self._calm.begin_recovery()
            try:
                result = self._run(record)
            except RuntimeError as error:
                failure = take_out_of_memory(torch, error)
            else:
                break
        self.note_recovery("forward", failure)
        return result

    def note_recovery(self, part: str, failure: Failure) -> None:
        """Counts a recovery, and says so."""
        self._activity.num_recoveries += 1
        self._has_recovered = True
        if self._shared is not None:
            self._shared.fail(self.ladder.rung)
        where = "" if self.replica is None else f" on rank {self.replica.rank}"
        say(
            f"out of memory in {part}{where} ({failure.text}): ran the model's call again on "
            f"{self.ladder.name()}"
        )

    def end_step(self) -> None:
        """After a step of an optimizer: goes back up after enough that needed less."""
        has_recovered, self._has_recovered = self._has_recovered, False
        if has_recovered:
            self._calm.end_recovery()
        is_calm = not has_recovered and self._calm.end()
        if self._shared is not None and not self._shared.is_lost:
            self._follow(self._shared, is_calm=is_calm)
        elif is_calm:
            self.ladder.go_to(self.ladder.rung - 1)
            say(f"{self._calm.num_calm} steps needed less: back to {self.ladder.name()}")
        self._calm.begin(self.ladder.rung)

    def _follow(self, shared: SharedRung, *, is_calm: bool) -> None:
        """Goes to the rung of all ranks."""
        if is_calm:
            shared.be_calm()
        shared.poll()
        rung = min(shared.rung, len(self.ladder) - 1)
        if shared.is_lost or rung == self.ladder.rung:
            return
        why = "all ranks needed less"
        if rung > self.ladder.rung:
            why = f"rank {shared.last_rank} ran out of memory"
            self._calm.end_recovery(is_own=False)
        self.ladder.go_to(rung)
        say(f"{why}: rank {shared.rank} goes to {self.ladder.name()}")

    def give_up(self, failure: Failure, first: int) -> BaseException:
        """The error of a call that fails on every rung."""
        names = [self.ladder.name(rung) for rung in range(first, len(self.ladder))]
        return refusal(failure, f"it ran out of memory on {', '.join(names)}; no rung is left")

    def run_again(self, records: Sequence[CallRecord]) -> None:
        """Runs calls of the past again, under the present rung: the outputs have a new graph. The
        state afterwards is that of now.

        Raises:
            GuardError: they cannot be run again, or do something else.
        """
        self._calm.begin_recovery()
        now = Snapshot(self._top, self._parameters, None, ())
        now.take()
        try:
            for record in records:
                record.check_inputs()
                record.snapshot.rewind(keeps_new=True)
                count = record.num_outputs
                value = record.run_as_then()
                outputs = self._outputs_of(record, value)
                record.outputs = self.replica.sink(outputs) if self.replica else outputs
                record.failure = None
                for owner, name in self._slots:
                    if isinstance(owner.get(name), torch.Tensor):
                        owner[name] = owner[name].detach()
                if len(record.outputs) != count:
                    raise GuardError("the second call of the model has returned something else")
        finally:
            now.rewind(keeps_new=True)

    def say_once(self, text: str) -> None:
        """Says what the guard does not do, the first time."""
        if text not in self._said:
            self._said.add(text)
            say(text)


def refusal(failure: Failure, reason: str) -> BaseException:
    """The out-of-memory error of a program, with why it was not recovered."""
    error: BaseException = torch.OutOfMemoryError(
        f"{failure.message}\nullage: guard: not recovered: {reason}"
    )
    return error


def _find_slots(modules: Sequence[Any]) -> list[tuple[dict[str, Any], str]]:
    """Where modules keep tensors with a graph as attributes, as losses of their own."""
    return [
        (vars(module), name)
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor) and value.grad_fn is not None
    ]
