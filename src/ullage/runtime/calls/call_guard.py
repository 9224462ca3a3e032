"""`ullage.guard_model`: recovers a training from running out of memory at the calls of its model,
in a script that does not know of it.

    with ullage.guard_model(model, optimizer):
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()

A call of the model that runs out of memory is run again under a leaner plan, a backward by running
the call again, a loss of torch with the call's graph let go, and the optimizer's step is finished.
What the script does in between otherwise is not run again. docs/guide/guard.md says what is
recovered and what is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet, ref

from ullage.errors import PlanError, SpecError
from ullage.record.owners.module_trees import class_name, live_owners, outermost
from ullage.runtime.calls.activity import Activity
from ullage.runtime.calls.guardable import is_replicated, rank_of, why_not, why_not_replica
from ullage.runtime.climb import Climb
from ullage.runtime.failure import Failure, say
from ullage.runtime.guarded_program import parameters_of
from ullage.runtime.ladder import Ladder, choose_plans, load_plans
from ullage.techniques.applying.apply import unwrap_optimizers
from ullage.techniques.applying.changes import Changes
from ullage.techniques.applying.outcome import State, note

if TYPE_CHECKING:
    from ullage.runtime.calls.model_guard import ModelGuard
    from ullage.runtime.calls.replica import Replica
    from ullage.runtime.optimizers.optimizer_step import GuardedOptimizer
    from ullage.techniques.plan import Plan

_CALM_STEPS = 100
_OPEN: list[CallGuard] = []


def _no_vote() -> None:
    """Before an optimizer's step; there is one rank."""


class CallGuard:
    """Guards the calls of models, and the steps of optimizers; see `guard_model`.

    Args:
        plans: the rungs; None: checkpoints.
        calm_steps: after so many steps that need less memory it goes back up.
        optimizers: whose models are guarded; more can be added.
        notes: the directory for what became of it; None: nobody reads it.

    Attributes:
        num_steps: steps of optimizers.
    """

    def __init__(
        self,
        plans: Sequence[Plan] | None = None,
        calm_steps: int = _CALM_STEPS,
        optimizers: Sequence[Any] = (),
        notes: Path | None = None,
    ) -> None:
        if calm_steps < 1:
            raise SpecError(f"calm_steps={calm_steps} is no number of steps; expected 1 or more")
        self.num_steps = 0
        self._notes = notes
        self._plans = plans
        self._calm_steps = calm_steps
        self._first = tuple(optimizers)
        # A script may drop a model and its optimizer, and train others.
        self._optimizers: WeakKeyDictionary[Any, ref[GuardedOptimizer]] = WeakKeyDictionary()
        self._guards: WeakKeyDictionary[Any, ref[ModelGuard]] = WeakKeyDictionary()
        self._unused: WeakSet[Any] = WeakSet()  # optimizers without a step
        self._settled: WeakSet[Any] = WeakSet()
        self._has_met = False
        self._who = ""
        self._changes = Changes()
        self._looking: Changes | None = None
        self._activity = Activity()

    def __enter__(self) -> CallGuard:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_recoveries(self) -> int:
        """Calls, backward passes and optimizer steps that ran out of memory and were completed."""
        return self._activity.num_recoveries

    @property
    def rung(self) -> int:
        """The leanest rung that is applied to a model; 0: every program as it is."""
        return max((guard.ladder.rung for guard in self._live_guards()), default=0)

    def _live_guards(self) -> list[ModelGuard]:
        return [guard for each in self._guards.values() if (guard := each()) is not None]

    def _live_optimizers(self) -> list[GuardedOptimizer]:
        return [each for link in self._optimizers.values() if (each := link()) is not None]

    def open(self) -> None:
        """Begins.

        Raises:
            SpecError: another one is open.
        """
        import torch

        from ullage.runtime.calls.losses import guard_losses

        if _OPEN:
            raise SpecError("a guard of the calls of models is open already; close it first")
        _OPEN.append(self)
        native = torch.autograd.backward
        self._changes.set(torch.autograd, "backward", self._guarding(native))
        guard_losses(self._changes, self._activity)
        for optimizer in self._first:
            self.add_optimizer(optimizer)

    def close(self) -> None:
        """Ends: nothing is left on models, optimizers or torch. A second call does nothing."""
        if self not in _OPEN:
            return
        _OPEN.remove(self)
        self._stop_looking()
        for guard in self._live_guards():
            guard.detach()
        for optimizer in self._live_optimizers():
            optimizer.detach()
        self._changes.undo()
        self.say_count()

    def say_count(self) -> None:
        """Says how many recoveries there were, if any."""
        if self.num_recoveries:
            say(f"{self._who}recoveries: {self.num_recoveries} in {self.num_steps} steps")

    def note(self, state: State, reason: str = "") -> None:
        """Writes what became of it in this process; the last call counts."""
        if self._notes is not None:
            note(self._notes, state, reason)

    def add_optimizer(self, optimizer: Any) -> None:
        """Guards the steps of an optimizer, and the models that have its parameters."""
        from ullage.runtime.optimizers.optimizer_step import GuardedOptimizer

        if optimizer in self._optimizers:
            return
        guarded = GuardedOptimizer(optimizer, self._note_finished, _no_vote)
        guarded.attach()
        self._optimizers[optimizer] = ref(guarded)  # which its `step` holds
        self._unused.add(optimizer)
        if not self._has_met:
            self.note(State.WAITING)
        self._changes.hook(optimizer.register_step_post_hook(self._end_step))
        self._look()

    def _end_step(self, stepped: Any, *_: Any) -> None:
        self.num_steps += 1
        for optimizer in self._live_optimizers():
            optimizer.begin()
        for guard in self._live_guards():
            guard.end_step()
        self._unused.discard(stepped)
        if not self._unused:
            self._stop_looking()

    def _note_finished(self, failure: Failure) -> None:
        self._activity.num_recoveries += 1
        say(f"out of memory in the optimizer ({failure.text}): finished its step")

    def _look(self) -> None:
        """Looks at each call of a module until each optimizer has done a step."""
        import torch

        if self._looking is None:
            self._looking = Changes()
            kind = torch.nn.Module
            self._looking.set(kind, "__call__", self._meeting(kind.__call__))

    def _stop_looking(self) -> None:
        if self._looking is not None:
            self._looking.undo()
            self._looking = None

    def _meeting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def meet_and_call(module: Any, *arguments: Any, **keywords: Any) -> Any:
            if self._is_new(module):
                self._meet(module)
            return call(module, *arguments, **keywords)

        meet_and_call._torchdynamo_inline = call  # type: ignore[attr-defined]
        return meet_and_call

    def _is_new(self, module: Any) -> bool:
        """Whether the script calls a module that is trained, and that was not met yet."""
        import torch

        if module in self._settled or not torch.is_grad_enabled():
            return False
        if not self._activity.is_idle or torch.compiler.is_compiling():
            return False
        return bool(self._optimizers_of(module))

    def _optimizers_of(self, module: Any) -> list[Any]:
        own = set(map(id, module.parameters()))
        return [
            optimizer
            for optimizer in list(self._optimizers)
            if any(id(each) in own for group in optimizer.param_groups for each in group["params"])
        ]

    def _meet(self, module: Any) -> None:
        """Guards a module, and describes what is done for its model, or why nothing is."""
        import torch

        self._has_met = True
        self.note(State.APPLIED)
        top = outermost(module, live_owners(torch)[0])
        wrapper = top if is_replicated(top) else None
        if wrapper is not None:
            top = wrapper.module
            if module is wrapper:
                self._settled.add(wrapper)
                # Its steps have the script's own part in them, which is not run again.
                if hasattr(top, "training_step"):
                    self._settled.add(top)
                    return
                module = top
        link = self._guards.get(top)
        guard = None if link is None else link()
        if guard is None:
            guard = self._make_guard(top, wrapper, is_part=module is not top)
            if guard is None:
                self._settled.update(top.modules())
                return
            self._guards[top] = ref(guard)  # which the module holds
        self._settled.add(module)
        guard.attach(module)

    def _make_guard(self, top: Any, wrapper: Any, *, is_part: bool) -> ModelGuard | None:
        from ullage.runtime.calls.model_guard import ModelGuard
        from ullage.runtime.calls.replica import Replica

        optimizers = self._optimizers_of(top)
        reason = why_not(top if wrapper is None else wrapper)
        if reason is None and wrapper is not None:
            reason = why_not_replica(wrapper, is_part=is_part)
        if reason is not None:
            say(f"{class_name(top)} is not guarded: {reason}")
            return None
        try:
            ladder = self._make_ladder(top, optimizers)
        except PlanError as error:
            if self._plans is not None:
                raise
            say(f"{class_name(top)} is not guarded: {error}")
            return None
        parameters = parameters_of(top, optimizers)
        replica = None if wrapper is None else Replica(wrapper)
        self._describe(top, ladder, replica)
        guard = ModelGuard(
            top, parameters, ladder,
            calm=Climb(self._calm_steps), activity=self._activity, replica=replica,
        )  # fmt: skip
        if replica is not None:
            guard.attach_wrapper(wrapper, replica)
        return guard

    def _make_ladder(self, top: Any, optimizers: list[Any]) -> Ladder:
        """The rungs of a model."""
        plans = [plan for plan in self._plans or () if plan.made_for.model == class_name(top)]
        if self._plans and not plans:
            say(f"the plans are for {self._plans[0].made_for.model}, not for {class_name(top)}")
        chosen = plans or choose_plans(top, optimizers)
        ladder = Ladder(chosen, top, optimizers, is_default=not plans)
        ladder.check()
        return ladder

    def _describe(self, top: Any, ladder: Ladder, replica: Replica | None) -> None:
        if replica is not None:
            self._who = f"rank {replica.rank}: "
            if replica.rank:
                return  # the first says the same
            say(
                "several ranks: one that runs out of memory runs its own call or backward again, "
                "while the others wait for it; after that all go to its rung"
            )
        say(
            f"{class_name(top)}: {ladder.text}; run again are the model's calls, their backward, a "
            "loss of torch, and the rest of an optimizer's step, not what the script does between"
        )
        for proof in ladder.proofs:
            say(proof)
        for optimizer in self._live_optimizers():
            if optimizer.reason is not None:
                say(f"not recovered: {optimizer.reason}")

    def _guarding(self, native: Callable[..., None]) -> Callable[..., None]:
        """Backward, of which the model's part can be run again."""

        @functools.wraps(native)
        def backward(
            tensors: Any, grad_tensors: Any = None, retain_graph: Any = None,
            *others: Any, **keywords: Any,
        ) -> None:  # fmt: skip
            # Higher orders, and gradients of some inputs alone, go past the guard.
            values = (*others, *keywords.values())
            is_plain = all(value is None or value is False for value in values)
            is_guarded = is_plain and self._activity.is_idle
            retains = bool(retain_graph)
            with self._activity.busy():
                run = self._prepare(native, tensors, retains=retains) if is_guarded else None
                if run is None:
                    native(tensors, grad_tensors, retain_graph, *others, **keywords)
                else:
                    run(grad_tensors)

        return backward

    def _prepare(
        self,
        native: Callable[..., None],
        tensors: Any,
        *,
        retains: bool,
    ) -> Callable[[Any], None] | None:
        """What runs a backward that leads to calls of models; None where it does not."""
        import torch

        from ullage.runtime.calls.backward import Backward
        from ullage.runtime.calls.graph import look

        roots = [tensors] if isinstance(tensors, torch.Tensor) else [*tensors]
        if not all(isinstance(root, torch.Tensor) for root in roots):
            return None
        reach = look(roots)
        if not reach.records or any(record.anchor is None for record in reach.records):
            return None
        for record in reach.records:
            if any(record.owner.owns(record, leaf) for leaf in reach.leaves):
                record.owner.say_once(
                    "only forward is run again where the script uses the model's parameters, or "
                    "tensors from within its graph, in its loss"
                )
                return None
        return functools.partial(Backward(native, reach, retains=retains).run, roots)


def guard_model(
    model: Any,
    optimizer: Any,
    *,
    plans: Iterable[Plan | str | PathLike[str]] | None = None,
    calm_steps: int = _CALM_STEPS,
) -> CallGuard:
    """A guard for a training loop that stays as it is: a context manager, in which the calls of a
    model, their backward and the optimizer's step are run again when they run out of memory.

    Args:
        model: the `nn.Module`, not compiled; of several ranks a DistributedDataParallel, or the
            module in it.
        optimizer: a `torch.optim.Optimizer`, or a list of several; wrappers of Accelerate too.
        plans: the rungs below the program as it is, from the fastest to the leanest: plans, or
            files of plans. None: checkpoints on every other block, then on every block, of which
            nothing is proved.
        calm_steps: after so many steps without an error that need less memory the guard goes back
            up one rung.

    Raises:
        SpecError: the model is compiled, or replicated or sharded by other means, or the number of
            steps is invalid.
        PlanError: a plan cannot be a rung.
    """
    reason = why_not(model) if rank_of() is None or is_replicated(model) else None
    if reason is None and is_replicated(model):
        reason = why_not_replica(model, is_part=False)
    if reason is not None:
        raise SpecError(f"{class_name(model)} cannot be guarded: {reason}")
    loaded = None if plans is None else load_plans(plans)
    return CallGuard(loaded, calm_steps, unwrap_optimizers(optimizer))
