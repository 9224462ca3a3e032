"""A training step that runs out of memory is run again under a leaner plan: `ullage.guard`.

    with ullage.guard(model, optimizer, plans=["half.json", "all.json"]) as guard:
        for batch in loader:
            loss = guard.step(train_step, batch)

The state before the step is restored, what holds memory is let go, and the same batch is run again,
bit for bit where the program is deterministic. docs/guide/guard.md says what is recovered, what is
refused, and what does not exist yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from ullage.errors import GuardError, SpecError
from ullage.runtime.adapt import Adapt, Change, read_settings
from ullage.runtime.calm import Calm
from ullage.runtime.failure import Failure, release, say, take_failure
from ullage.runtime.ladder import Ladder, choose_plans, load_plans
from ullage.techniques.applying.apply import unwrap_optimizers

if TYPE_CHECKING:
    from ullage.runtime.adaptation import Adaptation
    from ullage.runtime.optimizer_step import GuardedOptimizer
    from ullage.techniques.plan import Plan

Result = TypeVar("Result")
_CALM_STEPS = 100


class Guard:
    """Runs training steps, and runs those again that run out of memory; see `guard`.

    Attributes:
        num_recoveries: steps that ran out of memory and were completed.
        num_steps: steps that were completed.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        ladder: Ladder,
        calm: Calm,
        *,
        scaler: Any,
        extra: Any,
        adapt: Adapt | None,
    ) -> None:
        self.num_recoveries = 0
        self.num_steps = 0
        self._model = model
        self._optimizers = unwrap_optimizers(optimizer)
        self._ladder = ladder
        self._calm = calm
        self._scaler, self._extra = scaler, extra
        self._guarded: list[GuardedOptimizer] = []
        self._adapt = adapt
        self._adaptation: Adaptation | None = None
        self._is_open = False
        self._is_within = False

    @property
    def rung(self) -> int:
        """The rung that is applied; 0 is the program as it is."""
        return self._ladder.rung

    @property
    def log(self) -> list[Change]:
        """What `adapt` changed before steps, with reasons: the last 10,000 changes."""
        return [] if self._adaptation is None else self._adaptation.log

    def __enter__(self) -> Guard:
        import torch

        from ullage.runtime.gradients import Gradients
        from ullage.runtime.optimizer_step import GuardedOptimizer
        from ullage.runtime.snapshot import Snapshot

        self._torch: Any = torch
        self._ladder.check()
        parameters = _parameters_of(self._model, self._optimizers)
        if self._adapt is not None:
            from ullage.runtime.adaptation import Adaptation

            self._adaptation = Adaptation(self._adapt, self._ladder, parameters, self._optimizers)
        self._snapshot = Snapshot(self._model, parameters, self._scaler, self._extra)
        self._gradients = Gradients(parameters)
        self._guarded = [GuardedOptimizer(each, self._note_finished) for each in self._optimizers]
        for each in self._guarded:
            each.attach()
        self._is_open = True
        self._describe()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_open = False
        for each in self._guarded:
            each.detach()
        self._ladder.close()
        if self._adaptation is not None:
            self._adaptation.close()
        say(f"{self.num_recoveries} recoveries in {self.num_steps} steps")

    def step(self, fn: Callable[..., Result], /, *batch: Any, **keywords: Any) -> Result:
        """Runs a training step, and again under a leaner plan where it runs out of memory.

        Args:
            fn: runs forward and backward of a batch, and the optimizer's step if there is one. It
                must not draw the batch itself: it would draw another one the second time.
            batch: what fn is called with.
            keywords: the same.

        Returns:
            what fn returns.

        Raises:
            GuardError: the step cannot be run again, or the optimizer's step cannot be finished.
            torch.OutOfMemoryError: it has run out of memory on every rung.
        """
        if not self._is_open:
            raise SpecError("the guard is closed; call step within `with ullage.guard(...)`")
        if self._is_within:
            raise SpecError("a step of the guard is within another")
        self._is_within = True
        try:
            if self._adaptation is not None:
                self._adaptation.begin(batch, keywords)
            result = self._run(lambda: fn(*batch, **keywords))
            if self._adaptation is not None:
                self._adaptation.end()
        finally:
            self._is_within = False
            self._gradients.drop_stand_ins()
        self.num_steps += 1
        return result

    def _run(self, call: Callable[[], Result]) -> Result:
        self._snapshot.take()
        self._gradients.take()
        for each in self._guarded:
            each.begin()
        self._calm.begin(self._ladder.rung)
        try:
            result = call()
        except self._torch.OutOfMemoryError as error:
            failure = take_failure(error)
        else:
            self._snapshot.learn()
            if self._calm.end():
                self._climb()
            return result
        return self._run_again(call, failure)

    def _run_again(self, call: Callable[[], Result], failure: Failure) -> Result:
        """Runs a step that has failed on one rung after another."""
        from contextlib import nullcontext

        from ullage.runtime.again import Again

        first = rung = self._ladder.rung
        while True:
            release(self._torch)
            # A plan has put attributes on modules: the state is that of the rung before the step.
            self._ladder.go_to(first)
            self._rewind(failure)
            rung += 1
            if rung == len(self._ladder):
                self._ladder.go_to(rung - 1)
                self._give_up(failure, first)
            self._ladder.go_to(rung)
            self._calm.begin_recovery()
            progress = self._gradients.progress
            try:
                with nullcontext() if progress is None else Again(progress, is_closed=False):
                    result = call()
            except self._torch.OutOfMemoryError as error:
                failure = take_failure(error)
            else:
                break
        self._gradients.check()
        self._calm.end_recovery()
        self.num_recoveries += 1
        say(f"out of memory ({failure.text}): ran the step again on {self._ladder.name()}")
        return result

    def _rewind(self, failure: Failure) -> None:
        """Restores the state before the step.

        Raises:
            GuardError: it cannot be restored.
        """
        if any(each.has_run for each in self._guarded):
            raise GuardError(
                f"the step ran out of memory after the optimizer's step ({failure.text}); what "
                "follows it in the function is not run again: call it after guard.step"
            )
        is_unscaled = self._snapshot.is_unscaled(self._optimizers)
        try:
            self._snapshot.rewind()
        except GuardError as error:
            raise GuardError(f"{error} ({failure.text})") from None
        self._gradients.rewind(is_unscaled=is_unscaled)
        for each in self._guarded:
            each.begin()

    def _give_up(self, failure: Failure, first: int) -> None:
        """Raises the out-of-memory error of a step that fails on every rung."""
        names = [self._ladder.name(rung) for rung in range(first, len(self._ladder))]
        self._gradients.drop_stand_ins()
        state = "all else is as before the step"
        if self._gradients.is_incomplete:
            state = "gradients have a part of the step's sums: zero them"
        raise self._torch.OutOfMemoryError(
            f"{failure.message}\nullage: guard: the step ran out of memory on {', '.join(names)}; "
            f"no rung is left, and {state}"
        )

    def _climb(self) -> None:
        if self._adaptation is not None and self._adaptation.is_on:
            return
        self._ladder.go_to(self._ladder.rung - 1)
        say(f"{self._calm.num_calm} steps needed less: back to {self._ladder.name()}")

    def _note_finished(self, failure: Failure) -> None:
        self.num_recoveries += 1
        say(f"out of memory in the optimizer ({failure.text}): finished its step")

    def _describe(self) -> None:
        """Says what the rungs are, and what cannot be undone."""
        say(self._ladder.text)
        for proof in self._ladder.proofs:
            say(proof)
        for each in self._guarded:
            if each.reason is not None:
                say(f"not recovered: {each.reason}")
        if len(self._guarded) > 1:
            say("not recovered: an error after the first of several optimizers has run")


def guard(
    model: Any,
    optimizer: Any,
    *,
    plans: Iterable[Plan | str | PathLike[str]] | None = None,
    scaler: Any = None,
    extra: Sequence[Any] = (),
    calm_steps: int = _CALM_STEPS,
    adapt: bool | Adapt = False,
) -> Guard:
    """A guard, whose `step` runs a training step again under a leaner plan when it runs out of
    memory. It is a context manager; after it nothing is left on the model or the optimizer.

    Args:
        model: the `nn.Module`, in one process, not compiled.
        optimizer: a `torch.optim.Optimizer`, or a list of several.
        plans: the rungs below the program as it is, from the fastest to the leanest: plans, or
            files of plans. None: checkpoints on every other block, then on every block, of which
            nothing is proved.
        scaler: the `torch.amp.GradScaler`, if there is one.
        extra: objects with `state_dict` and `load_state_dict` that the step changes before the
            optimizer does, such as a scheduler.
        calm_steps: after so many steps without an error that need less memory the guard goes back
            up one rung.
        adapt: whether the need of each batch is forecast from the sizes of its tensors, and the
            rung changed before the step; True, or `ullage.Adapt` with its settings. It decides
            when the guard goes back up, and not calm_steps. See docs/guide/adapt.md.

    Raises:
        SpecError: several ranks, a compiled or replicated model, or an invalid number of steps.
        PlanError: a plan cannot be a rung, or the model has no repeated blocks.
    """
    if calm_steps < 1:
        raise SpecError(f"calm_steps={calm_steps} is no number of steps; expected 1 or more")
    _check_program(model)
    is_default = plans is None
    rungs = choose_plans(model, optimizer) if plans is None else load_plans(plans)
    ladder = Ladder(rungs, model, optimizer, is_default=is_default)
    settings = read_settings(adapt)
    calm = Calm(calm_steps)
    return Guard(model, optimizer, ladder, calm, scaler=scaler, extra=tuple(extra), adapt=settings)


def _check_program(model: Any) -> None:
    """Raises SpecError for what the guard does not know how to run again."""
    import torch

    distributed = torch.distributed
    has_ranks = distributed.is_available() and distributed.is_initialized()
    if has_ranks and distributed.get_world_size() > 1:
        raise SpecError("the guard is for one process; several ranks are not supported yet")
    for module in model.modules():
        is_compiled = getattr(module, "_compiled_call_impl", None) is not None
        if is_compiled or type(module).__name__ in ("OptimizedModule", "ScriptModule"):
            raise SpecError(
                "the model is compiled; the guard runs only eager models again, as a compiled one "
                "would be compiled anew for each rung"
            )
        if type(module).__name__ in ("DataParallel", "DistributedDataParallel"):
            raise SpecError(f"{type(module).__name__} is not supported yet; the guard is for one")


def _parameters_of(model: Any, optimizers: Sequence[Any]) -> list[Any]:
    """The parameters of a model and its optimizers, each once."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    parameters = [*model.parameters(), *(each for group in groups for each in group["params"])]
    return [*{id(parameter): parameter for parameter in parameters}.values()]
