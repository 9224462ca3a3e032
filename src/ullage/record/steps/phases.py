"""Phases: where forward, backward and optimizer begin and end in the event sequence.

A root module is one that is called while no other is; the replicas that DataParallel calls, each in
a thread of its own, are parts of the one that calls them. What ends a step: steps.py.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType, ModuleType
from typing import Any

from ullage.record import library, torch_internals
from ullage.record.owners.modules import Modules, is_replica
from ullage.record.owners.ownership import Claims
from ullage.record.owners.weight_copies import WeightCopies
from ullage.record.requests import concurrent_callers
from ullage.record.steps.input_shapes import count_tokens, find_shapes
from ullage.record.steps.steps import Mark, StepKind, Steps
from ullage.record.unseen import Unseen

_CLAIMED_STEP = 1
"""The step after which every module and optimizer is looked for, which takes about 0.1 s."""


class Following:
    """What follows small values or puts weights off, and has to know the phases. As it stands, for
    a real GPU, nothing is followed: values are what they are.
    """

    is_tracing = False

    def begin_backward(self) -> None:
        """A backward begins."""

    def end_backward(self) -> None:
        """It has ended."""

    def forget_optimizer(self, optimizer: Any) -> None:
        """What an optimizer holds is about to change."""

    def begin_update(self, *losses: Any) -> None:
        """An optimizer's own operations begin, after its closure has returned a loss, if any."""

    def end_update(self) -> None:
        """They have ended."""

    def settle(self, *, is_reading: bool) -> None:
        """The compiler begins to trace, or has ended."""


_ENTRANCES = (
    "_before_module", "_after_module", "_release", "_claim_moved", "_begin_function",
    "_leave_function", "_begin_backward", "_end_backward", "_note_construction",
    "_before_optimizer", "_begin_update", "_end_update", "_leave_optimizer", "_after_optimizer",
)  # fmt: skip
"""Where the program calls what is here; each is guarded."""


class _Depth(threading.local):
    modules = 0
    is_in_function = False
    has_autocast = False
    is_moving = False


class Phases:
    """Notes marks, and lets `claims` look for owners when their addresses are known."""

    def __init__(
        self,
        torch: ModuleType,
        claims: Claims,
        modules: Modules,
        *,
        max_steps: int | None,
        on_step: Callable[[int], None],
        on_stop: Callable[[int, StepKind], None],
        values: Following,
        unseen: Unseen,
    ) -> None:
        self.marks: list[Mark] = []
        self.steps = Steps(
            torch, self.marks, max_steps=max_steps, on_step=self._after_step, on_stop=on_stop
        )
        self._torch = torch
        self._claims = claims
        self._copies = WeightCopies(torch, claims)
        self._modules = modules
        self._on_step = on_step
        self.on_mark: Callable[[str], None] = lambda _kind: None
        self._values = values
        self._depth = _Depth()
        self._num_backward = 0
        self._num_optimizer = 0
        self._num_failed = 0
        self._is_updating = False
        self.is_tracing = False  # the compiler runs a backward of its own
        self.hooks: tuple[Any, ...] = ()
        self._unseen = unseen
        for name in _ENTRANCES:
            setattr(self, name, self._guard(getattr(self, name)))

    def _guard(self, entrance: Callable[..., Any]) -> Callable[..., Any]:
        return self._unseen.guard(entrance)

    def install(self) -> None:
        """Registers the hooks; nothing is undone, the process ends with them."""
        torch = self._torch
        modules = torch.nn.modules.module
        self.hooks = (
            modules.register_module_forward_pre_hook(self._before_module),
            modules.register_module_forward_hook(
                self._after_module, with_kwargs=True, always_call=True
            ),
        )
        torch.nn.Module._apply = self._around_move(torch.nn.Module._apply)
        optimizer = torch.optim.Optimizer
        optimizer.__init__ = self._around_construction(optimizer.__init__)
        optimizer.profile_hook_step = staticmethod(self._around_step(optimizer.profile_hook_step))
        run_backward = torch_internals.find(torch, "torch.autograd._engine_run_backward")
        if run_backward is not None:
            torch.autograd._engine_run_backward = self._around_backward(run_backward)

    def stop(self) -> None:
        """Ends the program after no step from here on, and has modules called without hooks."""
        self.steps.count_without_end()
        self._on_step = lambda _num_steps: None
        for handle in self.hooks:
            handle.remove()

    def whole_marks(self) -> list[Mark]:
        """The marks; where nothing ended a step, each whole forward of a root module did."""
        return self.steps.whole_marks(has_failed=self._num_failed > 0)

    def call_module(self, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Calls what stands for a module's call, and runs no hooks."""
        self._before_module(module, args)
        try:
            result = call(*args, **kwargs)
        except BaseException:
            self._after_module(module, args)
            raise
        self._after_module(module, args, kwargs, result)
        return result

    def call_optimizer(self, optimizer: Any, call: Callable[[], Any]) -> Any:
        """Calls what stands for an optimizer's step."""
        self._before_optimizer(optimizer, (optimizer,), {})
        return self._run_step(optimizer, call)

    def _run_step(self, optimizer: Any, call: Callable[[], Any]) -> Any:
        try:
            result = call()
        except BaseException:  # the program may catch it, and go on
            self._leave_optimizer()
            raise
        self._after_optimizer(optimizer)
        return result

    def call_function(self, call: Callable[[], Any]) -> Any:
        """Calls a function that runs modules unseen: outside of all modules, a forward. It ends
        where a backward or an optimizer begins in it.
        """
        if self._depth.modules or self.is_busy or not self._torch.is_grad_enabled():
            return call()
        self._begin_function()
        try:
            return call()
        finally:
            self._leave_function()

    def _begin_function(self) -> None:
        self._depth.modules += 1
        self._depth.is_in_function = True
        self.steps.begin_forward()
        self._mark("forward_begin", {"grad": True})

    def _leave_function(self) -> None:
        if self._depth.is_in_function:
            self._depth.is_in_function = False
            self._depth.modules = 0
            self._mark("forward_end")

    @property
    def is_busy(self) -> bool:
        """Whether a backward or an optimizer runs: a module called now starts no forward."""
        return self._num_backward > 0 or self._num_optimizer > 0

    def _mark(self, kind: str, payload: object = None) -> None:
        self.marks.append((library.position(), kind, payload))
        self.on_mark(kind)

    def _before_module(self, module: Any, _arguments: Any) -> None:
        self._depth.modules += 1
        self._depth.has_autocast |= self._torch.is_autocast_enabled("cuda")
        scope = self._modules.enter(module)
        if self._depth.modules == 1 and not self.is_busy:
            self._claims.claim_module(module)
            if not is_replica(module):
                self.steps.begin_forward()
                is_recorded = self._torch.is_grad_enabled()
                about = {"grad": is_recorded, "training": module.training, "module": scope}
                self._mark("forward_begin", about)

    def _after_module(self, module: Any, arguments: Any, *named_and_output: Any) -> None:
        self._leave_module(module, arguments, named_and_output)
        concurrent_callers.pass_on()

    def _around_move(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        """Around `Module._apply`, which moves and converts, of the outermost module."""

        @functools.wraps(apply)
        def apply_and_claim(module: Any, *arguments: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if self._depth.is_moving or self.is_tracing:
                return apply(module, *arguments, **kwargs)
            released = self._release(module) or []
            self._depth.is_moving = True
            try:
                return apply(module, *arguments, **kwargs)
            finally:
                self._depth.is_moving = False
                self._claim_moved(module, released)

        return apply_and_claim

    def _release(self, module: Any) -> list[tuple[Any, Any]]:
        return self._claims.release(module)

    def _claim_moved(self, module: Any, released: list[tuple[Any, Any]]) -> None:
        self._claims.claim_moved(module, released)

    def _leave_module(
        self, module: Any, arguments: Sequence[Any], named_and_output: Sequence[Any]
    ) -> None:
        library.leave_scope()
        self._depth.modules -= 1
        if self._depth.modules == 0 and not self.is_busy and not is_replica(module):
            has_failed = len(named_and_output) != 2
            # After an exception torch leaves out the named ones.
            kwargs, output = (_find_kwargs(), None) if has_failed else named_and_output
            called_with = (self._torch.Tensor, arguments, kwargs)
            about: dict[str, Any] = {"inputs": find_shapes(*called_with)}
            if self._depth.has_autocast:
                self._depth.has_autocast, about["autocast"] = False, True
            if has_failed:
                self._mark("forward_end", about | {"failed": True})
                self._num_failed += 1
                return
            about["tokens"] = count_tokens(*called_with)
            self._mark("forward_end", about)
            self._claims.claim_cache(kwargs, output)
            self.steps.end_forward()

    def _around_backward(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def run_backward(*arguments: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True  # IPython and pytest leave the frame out
            if self.is_tracing:
                return run(*arguments, **kwargs)
            self._begin_backward()
            try:
                return run(*arguments, **kwargs)
            except BaseException:
                self._num_failed += 1
                raise
            finally:
                self._end_backward()

        return run_backward

    def _begin_backward(self) -> None:
        self._num_backward += 1
        if self._num_backward == 1:
            self._leave_function()
            # An exception in forward may have left the count high: a backward from user code starts
            # at the top.
            if threading.current_thread() is threading.main_thread():
                self._depth.modules = 0
                library.leave_scopes()
            self._values.begin_backward()
            self.steps.see_backward()
            self._mark("backward_begin")

    def _end_backward(self) -> None:
        self._num_backward -= 1
        if self._num_backward == 0:
            self._mark("backward_end")
            self.steps.end_backward()
            self._claims.claim_gradients()
            self._values.end_backward()

    def _around_construction(self, construct: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(construct)
        def construct_and_note(optimizer: Any, *arguments: Any, **kwargs: Any) -> None:
            __tracebackhide__ = True
            construct(optimizer, *arguments, **kwargs)
            self._note_construction()

        return construct_and_note

    def _note_construction(self) -> None:
        self.steps.see_optimizer()

    def _around_step(self, hook_step: Callable[..., Any]) -> Callable[..., Any]:
        """torch wraps the step of each class of optimizers, to call hooks; here it is wrapped once
        more. The compiler would see a hook, and break the graph at it, where it looks through this.
        """

        @functools.wraps(hook_step)
        def hook_and_watch(function: Callable[..., Any]) -> Callable[..., Any]:
            hooked = hook_step(function)

            @functools.wraps(hooked)
            def step(optimizer: Any, *arguments: Any, **kwargs: Any) -> Any:
                own = (optimizer, *arguments), kwargs
                changed = self._before_optimizer(optimizer, *own) or own
                return self._run_step(optimizer, lambda: hooked(*changed[0], **changed[1]))

            step._torchdynamo_inline = hooked  # type: ignore[attr-defined]
            return step

        return hook_and_watch

    def _before_optimizer(self, optimizer: Any, arguments: Any, kwargs: Any) -> Any:
        self._num_optimizer += 1
        if self._num_optimizer > 1:
            return None
        self._leave_function()
        self.steps.see_optimizer()
        self._claims.claim_optimizer(optimizer)
        self._values.forget_optimizer(optimizer)
        if len(arguments) > 1 and callable(arguments[1]):
            closure, rest = self._around_closure(arguments[1]), arguments[2:]
            return (arguments[0], closure, *rest), kwargs
        if callable(kwargs.get("closure")):
            return arguments, kwargs | {"closure": self._around_closure(kwargs["closure"])}
        self._begin_update()
        return None

    def _begin_update(self, *losses: Any) -> None:
        self._is_updating = True
        self._values.begin_update(*losses)
        self._mark("optimizer_begin")

    def _end_update(self) -> None:
        self._is_updating = False
        self._mark("optimizer_end")
        self._values.end_update()

    def _around_closure(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Forward and backward that the optimizer calls in its step: the update comes after."""

        @functools.wraps(closure)
        def run_closure() -> Any:
            self._num_optimizer -= 1
            if self._is_updating:
                self._end_update()
            try:
                loss = closure()
            finally:
                self._num_optimizer += 1
            self._begin_update(loss)
            return loss

        return run_closure

    def _leave_optimizer(self) -> bool:
        """A step is over, well or not; whether it was in no other."""
        self._num_optimizer -= 1
        if self._num_optimizer == 0 and self._is_updating:
            self._end_update()
        return self._num_optimizer == 0

    def _after_optimizer(self, optimizer: Any) -> None:
        if self._leave_optimizer():
            self._claims.claim_optimizer(optimizer)
            self.steps.end_optimizer(optimizer)

    def _after_step(self, count: int) -> None:
        is_training = self.steps.kind is StepKind.TRAINING
        if count == _CLAIMED_STEP:
            owners = self._claims.claim_everything()
            if is_training:
                self._copies.look(*owners)
        elif is_training and count == _CLAIMED_STEP + 1:
            self._copies.claim()
        self._on_step(count)


def _find_kwargs() -> dict[str, Any]:
    """The named arguments of the module's call that runs, as torch's own function has them."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_call_impl":
        frame = frame.f_back
    return {} if frame is None else frame.f_locals.get("kwargs", {})
