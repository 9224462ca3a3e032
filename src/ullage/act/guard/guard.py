"""A training step that runs out of memory is run again under a leaner plan: `ullage.guard`.

    with ullage.guard(model, optimizer, plans=["half.json", "all.json"]) as guard:
        for batch in loader:
            loss = guard.step(train_step, batch)

The state before the step is restored, what holds memory is let go, and the same batch is run again,
bit for bit where the program is deterministic. docs/guide/guard.md says what is recovered, what is
refused, and what does not exist yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ullage.act.guard.adapting.adapt import Adapt, Change
from ullage.act.guard.climb import Climb
from ullage.act.guard.decorator import decorated, refuse_unrun
from ullage.act.guard.failure import Failure, release, say
from ullage.act.guard.guarded_program import parameters_of
from ullage.act.guard.ladder import Ladder
from ullage.act.techniques.applying.apply import unwrap_optimizers
from ullage.act.techniques.means.rerun import AROUND
from ullage.ground.errors import GuardError, PlanError, SpecError

if TYPE_CHECKING:
    from ullage.act.guard.adapting.adaptation import Adaptation
    from ullage.act.guard.batch_split import Divide, Split
    from ullage.act.guard.batches.largest_batch import LargestBatch
    from ullage.act.guard.optimizers.averages import GuardedAverage
    from ullage.act.guard.optimizers.optimizer_step import GuardedOptimizer
    from ullage.act.guard.ranks.steps import OneRank

Result = TypeVar("Result")
CALM_STEPS = 100
DEADLINE_S = 600.0


class Guard:
    """Runs training steps, and runs those again that run out of memory; see `guard`.

    Attributes:
        num_recoveries: steps that ran out of memory and were completed.
        num_steps: steps that were completed.
    """

    def __init__(
        self, model: Any, optimizer: Any, ladder: Ladder, climb: Climb, *,
        scaler: Any, extra: Any, averages: Any, adapt: Adapt | None, deadline_s: float,
    ) -> None:  # fmt: skip
        self.num_recoveries = 0
        self.num_steps = 0
        self._model = model
        self._optimizers = unwrap_optimizers(optimizer)
        self._ladder = ladder
        self._climb_rule = climb
        self._scaler, self._extra = scaler, extra
        self._deadline_s = deadline_s
        self._averages = averages
        self._guarded: list[GuardedOptimizer | GuardedAverage] = []
        self._adapt = adapt
        self._adaptation: Adaptation | None = None
        self._is_open = False
        self._is_within = False

    @property
    def rung(self) -> int:
        """The rung that is applied; 0 is the unchanged program. Those after the last plan split
        the batch of `step_in_parts`.
        """
        return self._ladder.rung

    @property
    def is_open(self) -> bool:
        """True if it is in its `with` block, or a decorated function has been called."""
        return self._is_open

    def __call__(self, fn: Callable[..., Result]) -> Callable[..., Result]:
        """As a decorator: each call of the function is a step of the guard, which opens with the
        first, and ends with the process or by `close()` of the decorated function.
        """
        return decorated(self, fn)

    @property
    def log(self) -> list[Change]:
        """The last 10,000 changes of `adapt` before steps, with reasons."""
        return [] if self._adaptation is None else self._adaptation.log

    def __enter__(self) -> Guard:
        import torch

        from ullage.act.guard.adapting.adaptation import Adaptation
        from ullage.act.guard.batch_split import BatchSplit
        from ullage.act.guard.captured import is_compiled, refuse_graphs
        from ullage.act.guard.gradients import Gradients
        from ullage.act.guard.optimizers.averages import GuardedAverage
        from ullage.act.guard.optimizers.optimizer_step import GuardedOptimizer
        from ullage.act.guard.ranks.steps import OneRank, open_ranks
        from ullage.act.guard.state.state import SecondRuns, State

        self._torch: Any = torch
        self._refuse_graphs = refuse_graphs
        self._is_compiled = is_compiled(self._model)
        self._ladder.check()
        self._ranks: OneRank = open_ranks(self._model, self._deadline_s)
        has_ranks = type(self._ranks) is not OneRank
        if has_ranks:
            self._ladder.ignore_host()
        self._split = BatchSplit(self._model, has_ranks=has_ranks)
        self._parameters = parameters_of(self._model, self._optimizers)
        if self._adapt is not None:
            self._adaptation = Adaptation(
                self._adapt, self._ladder, self._parameters, self._optimizers
            )
        self._state = State(
            self._model, self._optimizers, self._parameters, scaler=self._scaler,
            extra=self._extra, averages=self._averages,
        )  # fmt: skip
        self._gradients = Gradients(self._parameters, are_views=self._ranks.shares_gradients)
        finished_step = partial(self._note_finished, "the optimizer", "step")
        finished_update = partial(self._note_finished, "the average of weights", "update")
        self._guarded = [
            *(
                GuardedOptimizer(each, finished_step, self._ranks.vote_on_optimizer)
                for each in self._optimizers
            ),
            *(GuardedAverage(each, finished_update) for each in self._averages),
        ]
        for each in self._guarded:
            each.attach()
        self._around_second_runs = SecondRuns().undone
        AROUND.append(self._around_second_runs)
        self._is_open = True
        self._describe()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._is_open = False
        AROUND.remove(self._around_second_runs)
        if error is not None:
            self._ranks.refuse(error)
        self._ranks.close()
        for each in self._guarded:
            each.detach()
        self._ladder.close()
        if self._adaptation is not None:
            self._adaptation.close()
        say(f"recoveries: {self.num_recoveries} in {self.num_steps} steps{self._split.text}")

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
            SpecError: fn is a generator or async function, which has not run when its call ends.
            torch.OutOfMemoryError: it has run out of memory on every rung.
        """
        refuse_unrun(fn)
        return self._step(lambda: fn(*batch, **keywords), fn, batch, keywords, None)

    def step_in_parts(
        self, fn: Callable[..., Result], batch: Any, /, *, split: Split | None = None
    ) -> Result:
        """Runs a training step whose batch may be split where the leanest plan does not fit.

        Args:
            fn: gets pairs of a part of the batch and its weight; the weights sum to 1, and one
                part is the batch itself. It multiplies the mean loss of each part by its weight,
                runs backward for each, and calls the optimizer once.
            batch: what is split.
            split: `split(batch, num_parts)` are at most num_parts pairs of a part and its weight;
                it draws no random numbers. None: `ullage.split_rows`.

        Returns:
            what fn returns.

        Raises:
            GuardError: as for `step`; or parts have lost rows, the weights do not sum to 1, or fn
                calls the optimizer for each part.
            torch.OutOfMemoryError: it has run out of memory on every rung, and in eight parts.
        """
        refuse_unrun(fn)
        divide = self._split.divider(batch, split)
        call = self._split.calls(fn, divide, self._ladder, self._guarded)
        return self._step(call, (fn, split), (batch,), {}, divide)

    def _step(
        self, call: Callable[[], Result], fn: Any, batch: Any, keywords: Any,
        divide: Divide | None,
    ) -> Result:  # fmt: skip
        if not self._is_open:
            raise SpecError("the guard is closed; call step within `with ullage.guard(...)`")
        if self._is_within:
            raise SpecError("a step of the guard is within another")
        self._is_within = True
        try:
            self._ladder.allow_splits(0 if divide is None else self._split.num_splits)
            if self._adaptation is not None:
                self._adaptation.begin(batch, keywords, divide)
            self._state.take(fn, batch, keywords)
            result = self._run(call)
            if self._adaptation is not None:
                self._adaptation.end()
        except BaseException as error:
            self._ranks.refuse(error)
            raise
        finally:
            self._is_within = False
            self._state.drop_batch()
            self._gradients.drop_stand_ins()
        self.num_steps += 1
        self._split.count()
        return result

    def largest_batch(
        self,
        fn: Callable[..., Any],
        make_batch: Callable[[int], Any],
        *,
        at_most: int = 1 << 20,
        multiple_of: int = 1,
        sizes: Sequence[int] = (2, 4, 8),
        margin: float = 0.05,
    ) -> LargestBatch:
        """The largest batch with which a step fits this GPU, on the rung that is applied.

        The peaks of the small batches give a line, and with it the largest batch, which is run
        once. Before that the model, the optimizer and the generators are copied to the host, and
        after it they are as they were; gradients of earlier micro-batches are refused.

        Args:
            fn: as for `step`.
            make_batch: `make_batch(size)` is what fn is called with: a tuple, or one value.
            at_most: no larger batch is run.
            multiple_of: only multiples of it are predicted.
            sizes: the small batches.
            margin: the share of the allocator's limit that stays free: a predicted batch of an
                allocator with gaps between its blocks would run out of memory.

        Raises:
            SpecError: there is no GPU, or an option says nothing.
            GuardError: there are gradients, the host has no memory for the copies, or the peak does
                not grow with the batch.
            torch.OutOfMemoryError: a small batch does not fit.
        """
        from ullage.act.guard.batches.kept_state import KeptState
        from ullage.act.guard.batches.largest_batch import find_largest_batch

        if not self._is_open or self._is_within:
            raise SpecError("call largest_batch within `with ullage.guard(...)`, and in no step")
        for each in self._guarded:
            each.detach()
        try:
            largest = find_largest_batch(
                fn, make_batch, self._model,
                lambda: KeptState(self._model, self._optimizers, self._state),
                at_most=at_most, multiple_of=multiple_of, sizes=sizes, margin=margin,
            )  # fmt: skip
        finally:
            for each in self._guarded:
                each.attach()
        say(largest.text)
        return largest

    def _run(self, call: Callable[[], Result]) -> Result:
        for each in self._guarded:
            each.begin()
        self._climb_rule.begin(self._ladder.rung)
        self._ranks.begin()
        self._gradients.take(self._ranks.unreduced)
        self._ranks.adds_to_gradients = self._gradients.are_added_to
        try:
            result = call()
            is_calm = self._ranks.end(is_calm=self._climb_rule.end())
        except Exception as error:
            failure = self._ranks.take(error)
        else:
            self._state.learn()
            if is_calm:
                self._climb()
            return result
        try:
            return self._run_again(call, failure)
        except PlanError as error:
            raise GuardError(
                f"the step ran out of memory ({failure.text}), and {self._ladder.name()} is not "
                f"for it: {error}"
            ) from failure.error
        except Exception as error:
            # Whatever ends the recovery, the program sees what began it.
            if error is not failure.error:
                error.__cause__ = failure.error
            raise

    def _run_again(self, call: Callable[[], Result], failure: Failure) -> Result:
        """Runs a step that has failed on one rung after another."""
        from contextlib import nullcontext

        from ullage.act.guard.rerun import Rerun

        first = rung = self._ladder.rung
        is_first_try = True
        while True:
            release(self._torch)
            failure = self._ranks.meet(failure, self._parameters)
            self._rewind(failure)
            leaner = self._ladder.next_try(
                rung, is_first=is_first_try, may_split=not self._gradients.is_incomplete
            )
            if leaner is None:
                self._give_up(failure, first, rung)
            rung, is_first_try = leaner, False
            self._ladder.go_to(rung)
            # The plan of a rung puts attributes on modules.
            self._state.take_again()
            self._climb_rule.begin_recovery()
            progress = self._gradients.progress
            try:
                self._ranks.begin_again()
                with nullcontext() if progress is None else Rerun(progress, is_closed=False):
                    result = call()
                self._ranks.end(is_calm=False)
            except Exception as error:
                failure = self._ranks.take(error)
            else:
                break
        self._gradients.check()
        self._state.check()
        self._state.learn()
        self._climb_rule.end_recovery(is_own=self._ranks.has_failed)
        self.num_recoveries += 1
        text = self._ladder.name() + self._split.sameness(self._ladder, self._state)
        say(f"out of memory ({failure.text}): ran the step again on {text}")
        return result

    def _rewind(self, failure: Failure) -> None:
        if any(each.has_run for each in self._guarded):
            raise GuardError(
                f"the step ran out of memory after the optimizer's step ({failure.text}); what "
                "follows it in the function is not run again: call it after guard.step"
            )
        is_unscaled = self._state.is_unscaled(self._optimizers)
        try:
            self._refuse_graphs()
            self._state.restore(self._gradients.from_before)
        except GuardError as error:
            raise GuardError(f"{error} ({failure.text})") from None
        self._gradients.rewind(is_unscaled=is_unscaled)
        self._ranks.check_gradients()
        if self._is_compiled and self._gradients.progress is not None:
            raise GuardError(
                f"the step ran out of memory ({failure.text}) with gradients of earlier "
                "micro-batches; what was added to them is followed in eager models only"
            )
        for each in self._guarded:
            each.begin()

    def _give_up(self, failure: Failure, first: int, last: int) -> NoReturn:
        """Raises the out-of-memory error of a step that fails on every rung."""
        self._ranks.agree_to_give_up()
        names = [self._ladder.name(rung) for rung in self._ladder.tried(first, last)]
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
        self._ladder.go_to(self._ladder.above(self._ladder.rung))
        say(f"{self._climb_rule.num_calm} steps needed less: back to {self._ladder.name()}")

    def _note_finished(self, part: str, work: str, failure: Failure) -> None:
        self.num_recoveries += 1
        say(f"out of memory in {part} ({failure.text}): finished its {work}")

    def _describe(self) -> None:
        """Says what the rungs are, and what cannot be undone."""
        say(self._ladder.text)
        if self._ranks.text:
            say(self._ranks.text)
        for proof in self._ladder.proofs:
            say(proof)
        for each in self._guarded:
            if each.reason is not None:
                say(f"not recovered: {each.reason}")
        if len(self._optimizers) > 1:
            say("not recovered: an error after the first of several optimizers has run")
