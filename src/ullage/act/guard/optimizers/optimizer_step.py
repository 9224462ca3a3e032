"""An optimizer whose `step()` is finished after an out-of-memory error within it.

Neither parameters nor states are copied. Version counters say which of the operations of the step
were executed, and the others are done (rerun.py). Forward and backward are not run again.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from ullage.act.guard.call import Call
from ullage.act.guard.failure import (
    Failure,
    is_out_of_memory,
    release,
    take_failure,
    take_out_of_memory,
)
from ullage.act.guard.optimizers.closure import watch_closure
from ullage.act.guard.optimizers.reasons import SILENT, check_counters, name_of, why_not
from ullage.act.guard.optimizers.sgd_step import Finished, hidden, is_fused_sgd, read_finished
from ullage.act.guard.progress import Progress
from ullage.act.guard.ranks.agreement import PeerOutOfMemory
from ullage.act.guard.reads.counters import Counters, Flags
from ullage.act.guard.rerun import Rerun
from ullage.act.guard.sharded.local_tensors import is_sharded, version_of
from ullage.act.guard.sharded.shared_step import Recording, SharedStep
from ullage.ground.errors import GuardError

# The version counters of an optimizer's states when they have just been made.


def raw_step(optimizer: Any) -> Any:
    """`step` of its class without hooks."""
    step = type(optimizer).step
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def first_versions(optimizer: Any, group: Mapping[str, Any], parameter: Any) -> dict[str, int]:
    """The version counters of an optimizer's states when they have just been made, by name: those
    after the first step of a small optimizer of the same kind, less the operations of that step.
    """

    def step_small(mode: Any) -> Mapping[str, Any]:
        small = torch.nn.Parameter(
            torch.ones([2] * parameter.dim(), dtype=parameter.dtype, device=parameter.device)
        )
        small.grad = torch.ones_like(small)
        options = {
            name: value for name, value in group.items() if name not in ("params", "param_names")
        }
        twin = type(optimizer)([{**options, "params": [small]}])
        with mode:
            raw_step(twin)(twin)
        state: Mapping[str, Any] = twin.state[small]
        return state

    counting = _Counting()
    counted = step_small(counting)
    plain = step_small(nullcontext())
    return {
        name: value._version - counting.num_changes(counted[name])
        for name, value in plain.items()
        if isinstance(value, torch.Tensor)
    }


class _Counting(TorchDispatchMode):  # type: ignore[misc]
    """Counts in-place operations by tensor, but for fused updates."""

    def __init__(self) -> None:
        super().__init__()
        self._changed: list[Any] = []

    def num_changes(self, tensor: Any) -> int:
        return sum(each is tensor for each in self._changed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = Call(func, args, kwargs or {})
        if not call.is_fused:
            self._changed += call.written
        return call.run()


# An optimizer as its `step()` is called: who holds what, and their version counters.


@dataclass(frozen=True, slots=True)
class Before:
    """Version counters when `step()` was called.

    Attributes:
        parameters, versions: those of the optimizer, and their counters.
        gradient_versions: of their gradients; -1 where there is none.
        states, state_versions: owner, name and tensor of each state, and its counter.
        with_state: the identities of parameters that have states.
        counters: what reads the counters of parameters and of states.
        is_begun: whether a part of the step was done before.
    """

    parameters: list[Any]
    versions: Sequence[int]
    gradient_versions: Sequence[int]
    states: list[tuple[Any, str, Any]]
    state_versions: Sequence[int]
    with_state: frozenset[int]
    counters: tuple[Counters, Counters]
    is_begun: bool = False

    def without(self, finished: Finished, state: Mapping[Any, Any]) -> Before:
        """As if the step had begun when some parameters were finished already."""
        ids = {*map(id, finished.parameters)}
        had = {(id(owner), name) for owner, name, _ in self.states}
        states = self.states + [
            (owner, name, tensor)
            for owner in finished.parameters
            for name, tensor in state.get(owner, {}).items()
            if (id(owner), name) not in had and isinstance(tensor, torch.Tensor)
        ]
        new = states[len(self.states) :]
        versions = [*self.state_versions, *(version_of(each) for *_, each in new)]
        return replace(
            self,
            versions=[version_of(each) if id(each) in ids else version
                      for each, version in zip(self.parameters, self.versions, strict=True)],
            states=states,
            state_versions=[version_of(each) if id(owner) in ids else version
                            for (owner, _, each), version in zip(states, versions, strict=True)],
            with_state=self.with_state | ids,
            is_begun=bool(ids),
        )  # fmt: skip


_ABSENT = object()
_BETWEEN = (
    "parameters and optimizer states may be between two steps: go back to the last checkpoint"
)
_NO_MEMORY = "there is no memory to look at how far the optimizer has got"
_TRIES = 3


class GuardedOptimizer:
    """Puts itself around `step()` of an optimizer.

    Args:
        optimizer: a `torch.optim.Optimizer`.
        on_recovery: called with a failure after a step was finished.
        before_step: called before `step()`; an error of its own ends it.

    Attributes:
        has_run: whether `step()` has run to its end since `begin`.
        is_once: whether a second `step()` since `begin` is refused.
    """

    def __init__(
        self,
        optimizer: Any,
        on_recovery: Callable[[Failure], None],
        before_step: Callable[[], None],
    ) -> None:
        self.has_run = False
        self.is_once = False
        self._before_step = before_step
        self._optimizer = optimizer
        self._on_recovery = on_recovery
        self._had: Any = _ABSENT
        self._attribute: Any = None
        self._is_attached = False
        self._states: list[tuple[Any, str, Any]] = []
        self._state_counters = Counters(())
        self._state: Any = None
        self._known: tuple[int, list[int]] | None = None
        self._with_state: frozenset[int] = frozenset()
        self._parameters: list[Any] = []
        self._counters, self._flags = Counters(()), Flags(())
        self._is_sharded = False
        self._recording = Recording()

    @property
    def reason(self) -> str | None:
        """Why a step that fails half-way cannot be finished; None if it can."""
        return why_not(self._optimizer)

    def begin(self) -> None:
        """Before a step of the guard."""
        self.has_run = self.is_once = False
        if self._state is not self._optimizer.state:
            # Of a state that was replaced: its memory is let go.
            self._states, self._state_counters = [], Counters(())

    def attach(self) -> None:
        """Begins to watch `step()`."""
        inner = self._optimizer.step

        @functools.wraps(inner)
        def step(_: Any, *arguments: Any, **keywords: Any) -> Any:
            if not self._is_attached:
                return inner(*arguments, **keywords)
            return self._step(inner, arguments, keywords)

        self._had = vars(self._optimizer).get("step", _ABSENT)
        self._attribute = MethodType(step, self._optimizer)
        self._optimizer.step = self._attribute
        self._is_attached = True

    def detach(self) -> None:
        """Ends that. If something was put around `step()` since, the guard's part stays within it
        and does nothing.
        """
        self._is_attached = False
        if vars(self._optimizer).get("step") is not self._attribute:
            return
        if self._had is _ABSENT:
            del self._optimizer.step
        else:
            self._optimizer.step = self._had

    def _step(self, inner: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        self._refuse_a_second()
        self._before_step()
        before = self._take()
        closure = None
        if arguments or keywords:
            closure, arguments, keywords = watch_closure(
                self._optimizer, arguments, keywords, self._take
            )
        try:
            with self._record():
                result = inner(*arguments, **keywords)
        except PeerOutOfMemory:
            raise
        except RuntimeError as error:
            if not is_out_of_memory(torch, error):
                raise
            finished = self._read_finished(error, before)  # before its frames are cleared
            failure = take_failure(error)
        else:
            self.has_run = True
            self._recording.clear()
            return result
        release(torch)
        others = {**keywords, "closure": None} if closure and closure.has_run_once else keywords
        has_closure = any(value is not None for value in (*arguments, *others.values()))
        if closure and not has_closure:
            before = closure.before
        if has_closure or _code_of(self._optimizer) not in failure.codes:
            self._refuse_if_changed(before, "what failed is a closure or a hook of its step")
            raise torch.OutOfMemoryError(failure.message)
        self._complete(failure, before, finished)
        self._recording.clear()
        self._run_post_hooks(arguments, keywords)
        self.has_run = True
        self._on_recovery(failure)
        return closure.result if closure else None

    def _refuse_a_second(self) -> None:
        if self.is_once and self.has_run:
            raise GuardError(
                f"the function has called {name_of(self._optimizer)}.step() for a part of the "
                "batch; call it once, after the last part. The weights have had the gradients "
                "of a part: go back to the last checkpoint"
            )

    def _complete(self, failure: Failure, before: Before, finished: Finished | None) -> None:
        """Does the rest of a step, or raises what says why it is not done."""
        is_unknown = is_fused_sgd(self._optimizer) and finished is None
        if self.reason is not None or is_unknown:
            raise GuardError(
                f"{self.reason or SILENT}, and ran out of memory ({failure.text}); {_BETWEEN}"
            )
        try:
            check_counters(before.parameters)
            with hidden(self._optimizer, finished or Finished()):
                state = self._optimizer.state
                rest = self._finish(failure, before.without(finished or Finished(), state))
        except PeerOutOfMemory:
            raise
        except GuardError as error:
            raise GuardError(f"{error} ({failure.text}); {_BETWEEN}") from None
        except RuntimeError as error:
            if not is_out_of_memory(torch, error):
                raise
            # Not of the step: of what looks at how far it has got.
            raise GuardError(f"{_NO_MEMORY} ({failure.text}); {_BETWEEN}") from None
        if rest is not None:
            raise torch.OutOfMemoryError(rest.message)

    def _take(self) -> Before:
        optimizer = self._optimizer
        counts = [len(group["params"]) for group in optimizer.param_groups]
        if self._state is not optimizer.state or self._known != (len(optimizer.state), counts):
            self._state, self._known = optimizer.state, (len(optimizer.state), counts)
            self._states = [*_states_of(optimizer)]
            self._state_counters = Counters([tensor for _, _, tensor in self._states])
            self._with_state = frozenset(map(id, optimizer.state))
            self._parameters = [
                each for group in optimizer.param_groups for each in group["params"]
            ]
            self._counters = Counters(self._parameters)
            self._flags = Flags(self._parameters)
            self._is_sharded = any(map(is_sharded, self._parameters))
        self._recording.clear()
        parameters = self._parameters
        return Before(
            parameters,
            self._counters.read(),
            self._flags.read_gradient_versions(),
            self._states,
            self._state_counters.read(),
            self._with_state,
            (self._counters, self._state_counters),
        )

    @contextmanager
    def _record(self) -> Iterator[None]:
        """Around a step of sharded parameters: notes what is needed to finish it."""
        if not self._is_sharded:
            yield
            return
        # What hooks do before it is not run again.
        clear = self._optimizer.register_step_pre_hook(lambda *_: self._recording.clear())
        try:
            with SharedStep(self._recording):
                yield
        finally:
            clear.remove()

    def _finishing(self, progress: Progress) -> AbstractContextManager[Any]:
        """Around what does the rest of a step."""
        progress.begin()
        self._recording.begin()
        if not progress.is_untouched:
            recording = self._recording if self._is_sharded else None
            return Rerun(progress, is_closed=True, recording=recording)
        return SharedStep(self._recording) if self._is_sharded else nullcontext()

    def _read_finished(self, error: BaseException, before: Before) -> Finished | None:
        versions = dict(zip(map(id, before.parameters), before.versions, strict=True))
        return read_finished(self._optimizer, error, _code_of(self._optimizer), versions)

    def _refuse_if_changed(self, before: Before, why: str) -> None:
        """Raises GuardError unless parameters and states are as they were."""
        for counters in before.counters:
            counters.check()
        versions = [*map(version_of, before.parameters)]
        states = [*_states_of(self._optimizer)]
        is_same = (
            versions == [*before.versions]
            and len(states) == len(before.states)
            and [version_of(tensor) for _, _, tensor in states] == [*before.state_versions]
        )
        if not is_same or is_fused_sgd(self._optimizer):
            raise GuardError(f"{name_of(self._optimizer)} has run a part of its step; {why}")

    def _finish(self, failure: Failure, before: Before) -> Failure | None:
        """Does the rest of a step. Returns the last error if nothing of it is done."""
        step = raw_step(self._optimizer)
        progress: Progress | None = None
        is_fused = any(group.get("fused") for group in self._optimizer.param_groups)
        is_lost = False
        for _ in range(_TRIES):
            if progress is None:
                progress = self._read_progress(before)
            is_untouched = progress.is_untouched
            try:
                with self._finishing(progress):
                    step(self._optimizer)
            except PeerOutOfMemory:
                raise
            except RuntimeError as error:
                # No counter shows what a fused SGD has finished of this try.
                is_lost = is_fused_sgd(self._optimizer) and (
                    self._read_finished(error, before) != Finished()
                )
                failure = take_out_of_memory(torch, error)
            else:
                if not is_untouched:
                    progress.check([each for _, _, each in _states_of(self._optimizer)])
                return None
            release(torch)
            if is_lost:
                break
            if is_untouched:
                progress = None  # version counters say how far this one got
            elif is_fused and not self._is_sharded:
                break
            else:  # states that this try has made are made again
                state = self._optimizer.state
                for parameter in [each for each in state if id(each) not in before.with_state]:
                    del state[parameter]
        if progress is None:
            progress = self._read_progress(before)
        if progress.is_untouched and not (before.is_begun or is_lost):
            return failure
        raise GuardError(
            f"{name_of(self._optimizer)} has run a part of its step, and there is no memory for "
            "the rest"
        )

    def _read_progress(self, before: Before) -> Progress:
        """The executed part, by version counters. States that the step has made are deleted where
        their parameter is as it was: they are made again.
        """
        progress = Progress()
        groups = self._optimizer.param_groups
        if [*map(id, before.parameters)] != [id(p) for g in groups for p in g["params"]]:
            raise GuardError(f"{name_of(self._optimizer)} has other parameters than before")
        for counters in before.counters:
            counters.check()
        versions = dict(zip(map(id, before.parameters), before.versions, strict=True))
        for parameter in before.parameters:
            progress.add(parameter, version_of(parameter) - versions[id(parameter)])
        for parameter, version in zip(before.parameters, before.gradient_versions, strict=True):
            # Of those that are finished it is hidden.
            if version >= 0 and parameter.grad is not None:
                progress.add(parameter.grad, version_of(parameter.grad) - version)
        state = self._optimizer.state
        for (parameter, name, tensor), version in zip(
            before.states, before.state_versions, strict=True
        ):
            if state[parameter].get(name) is not tensor:
                raise GuardError(f"{name_of(self._optimizer)} has replaced its state {name!r}")
            progress.add(tensor, version_of(tensor) - version)
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if parameter in state and id(parameter) not in before.with_state:
                    is_same = version_of(parameter) == versions[id(parameter)]
                    self._read_new_state(progress, group, parameter, is_same=is_same)
        self._check_names(before)
        return progress

    def _read_new_state(
        self, progress: Progress, group: Mapping[str, Any], parameter: Any, *, is_same: bool
    ) -> None:
        """Deletes a state that the step has made, or adds it to what was executed."""
        state = self._optimizer.state
        tensors = {k: v for k, v in state[parameter].items() if isinstance(v, torch.Tensor)}
        is_silent = group.get("fused") and not self._is_sharded
        if is_same and not (is_silent and any(map(version_of, tensors.values()))):
            del state[parameter]
            return
        first = first_versions(self._optimizer, group, parameter)
        for name, tensor in tensors.items():
            version = version_of(tensor)
            executed = version - first.get(name, version + 1)
            if executed < 0:
                raise GuardError(
                    f"{name_of(self._optimizer)} has made its state {name!r} otherwise"
                )
            progress.add(tensor, executed)

    def _check_names(self, before: Before) -> None:
        """Raises GuardError if states that were there have grown by other entries."""
        names = {(id(parameter), name) for parameter, name, _ in before.states}
        for parameter, name, _ in _states_of(self._optimizer):
            if id(parameter) in before.with_state and (id(parameter), name) not in names:
                raise GuardError(f"{name_of(self._optimizer)} has added its state {name!r}")
        for state in self._optimizer.state.values():
            for name, value in state.items():
                if value is not None and not isinstance(value, torch.Tensor):
                    raise GuardError(
                        f"{name_of(self._optimizer)} counts {name!r} in a {type(value).__name__}"
                    )

    def _run_post_hooks(self, arguments: Any, keywords: Any) -> None:
        """Runs what `step()` calls at its end."""
        own = self._optimizer._optimizer_step_post_hooks
        for hook in [*own.values(), *_global_optimizer_post_hooks.values()]:
            hook(self._optimizer, arguments, keywords)


def _states_of(optimizer: Any) -> list[tuple[Any, str, Any]]:
    """The tensors of an optimizer's state: parameter, name, tensor."""
    return [
        (parameter, name, value)
        for parameter, state in optimizer.state.items()
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
    ]


def _code_of(optimizer: Any) -> Any:
    """The code of its class's own `step`."""
    return getattr(inspect.unwrap(type(optimizer).step), "__code__", None)
