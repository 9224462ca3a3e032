"""Phases: where forward, backward and optimizer begin and end in the event sequence.

A root module is one that is called while no other is; the replicas that DataParallel calls, each in
a thread of its own, are parts of the one that calls them. A step ends with optimizer.step(); a
program without an optimizer steps with its root module's forward.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from ullage.record import library, users
from ullage.record.modules import Modules, is_replica
from ullage.record.ownership import Claims
from ullage.record.values import Values

Mark = tuple[int, str, Any]
_CLAIMED_STEP = 1
"""The step after which every module and optimizer is looked for, which takes about 0.1 s."""


class StepsReached(SystemExit):
    """Ends the program after the number of steps that was asked for, as sys.exit(0) would."""


class _Depth(threading.local):
    modules = 0
    is_in_function = False


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
        values: Values,
    ) -> None:
        self.marks: list[Mark] = []
        self.num_steps = 0
        self.has_optimizer = False
        self._torch = torch
        self._claims = claims
        self._modules = modules
        self._max_steps = max_steps
        self._on_step = on_step
        self._values = values
        self._depth = _Depth()
        self._num_backward = 0
        self._num_optimizer = 0
        self._num_failed = 0
        self._is_updating = False
        self._stepped: set[int] = set()  # the optimizers that have ended the last step
        self.is_tracing = False  # the compiler runs a backward of its own
        self.hooks: tuple[Any, ...] = ()

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
        optimizer = torch.optim.Optimizer
        optimizer.profile_hook_step = staticmethod(self._around_step(optimizer.profile_hook_step))
        run_backward = getattr(torch.autograd, "_engine_run_backward", None)
        if run_backward is not None:
            torch.autograd._engine_run_backward = self._around_backward(run_backward)

    def whole_marks(self) -> list[Mark]:
        """The marks; where nothing ended a step, each whole forward of a root module did."""
        if self.num_steps or self._num_failed:
            return self.marks
        marks: list[Mark] = []
        num_steps = 0
        for mark in self.marks:
            marks.append(mark)
            if mark[1] == "forward_end":
                marks.append((mark[0], "step", num_steps))
                num_steps += 1
        return marks

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
        result = call()
        self._after_optimizer(optimizer)
        return result

    def call_function(self, call: Callable[[], Any]) -> Any:
        """Calls a function that runs modules unseen: outside of all modules, a forward. It ends
        where a backward or an optimizer begins in it.
        """
        if self._depth.modules or self.is_busy or not self._torch.is_grad_enabled():
            return call()
        self._depth.modules += 1
        self._depth.is_in_function = True
        self._mark("forward_begin", {"grad": True})
        try:
            return call()
        finally:
            self._leave_function()

    def _leave_function(self) -> None:
        if self._depth.is_in_function:
            self._depth.is_in_function = False
            self._depth.modules = 0
            self._mark("forward_end")

    @property
    def is_busy(self) -> bool:
        """Whether a backward or an optimizer runs: a module called now starts no forward."""
        return self._num_backward > 0 or self._num_optimizer > 0

    @property
    def part(self) -> str:
        """Of the step: "optimizer", "backward", or "forward" for all else."""
        return (
            "optimizer" if self._num_optimizer else "backward" if self._num_backward else "forward"
        )

    def _mark(self, kind: str, payload: object = None) -> None:
        self.marks.append((library.position(), kind, payload))

    def _before_module(self, module: Any, _arguments: Any) -> None:
        self._modules.enter(module)
        self._depth.modules += 1
        if self._depth.modules == 1 and not self.is_busy:
            self._claims.claim_module(module)
            if not is_replica(module):
                self._mark("forward_begin", {"grad": self._torch.is_grad_enabled()})

    def _after_module(self, module: Any, _arguments: Any, *named_and_output: Any) -> None:
        self._leave_module(module, named_and_output)
        users.pass_on()

    def _leave_module(self, module: Any, named_and_output: Sequence[Any]) -> None:
        library.leave_scope()
        self._depth.modules -= 1
        if self._depth.modules == 0 and not self.is_busy and not is_replica(module):
            self._mark("forward_end")
            if len(named_and_output) != 2:  # after an exception torch leaves out the named ones
                self._num_failed += 1
                return
            self._claims.claim_cache(*named_and_output)
            if not self.has_optimizer and not self._torch.is_grad_enabled():
                self._end_step()

    def _around_backward(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def run_backward(*arguments: Any, **named: Any) -> Any:
            if self.is_tracing:
                return run(*arguments, **named)
            self._begin_backward()
            try:
                return run(*arguments, **named)
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
            self._mark("backward_begin")

    def _end_backward(self) -> None:
        self._num_backward -= 1
        if self._num_backward == 0:
            self._mark("backward_end")
            self._claims.claim_gradients()
            self._values.end_backward()

    def _around_step(self, hook_step: Callable[..., Any]) -> Callable[..., Any]:
        """torch wraps the step of each class of optimizers, to call hooks; here it is wrapped once
        more. The compiler would see a hook, and break the graph at it, where it looks through this.
        """

        @functools.wraps(hook_step)
        def hook_and_watch(function: Callable[..., Any]) -> Callable[..., Any]:
            hooked = hook_step(function)

            @functools.wraps(hooked)
            def step(optimizer: Any, *arguments: Any, **named: Any) -> Any:
                own = (optimizer, *arguments), named
                changed = self._before_optimizer(optimizer, *own) or own
                result = hooked(*changed[0], **changed[1])
                self._after_optimizer(optimizer)
                return result

            step._torchdynamo_inline = hooked  # type: ignore[attr-defined]
            return step

        return hook_and_watch

    def _before_optimizer(self, optimizer: Any, arguments: Any, named: Any) -> Any:
        self._num_optimizer += 1
        if self._num_optimizer > 1:
            return None
        self._leave_function()
        self.has_optimizer = True
        self._claims.claim_optimizer(optimizer)
        self._values.forget_optimizer(optimizer)
        if len(arguments) > 1 and callable(arguments[1]):
            closure, rest = self._around_closure(arguments[1]), arguments[2:]
            return (arguments[0], closure, *rest), named
        if callable(named.get("closure")):
            return arguments, named | {"closure": self._around_closure(named["closure"])}
        self._begin_update()
        return None

    def _begin_update(self) -> None:
        self._is_updating = True
        self._values.pause()
        self._mark("optimizer_begin")

    def _end_update(self) -> None:
        self._is_updating = False
        self._mark("optimizer_end")
        self._values.resume()

    def _around_closure(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Forward and backward that the optimizer calls in its step: the update comes after."""

        @functools.wraps(closure)
        def run_closure() -> Any:
            self._num_optimizer -= 1
            if self._is_updating:
                self._end_update()
            # Not undone after an exception: that ends the optimizer's step too.
            loss = closure()
            self._num_optimizer += 1
            self._begin_update()
            return loss

        return run_closure

    def _after_optimizer(self, optimizer: Any) -> None:
        self._num_optimizer -= 1
        if self._num_optimizer:
            return
        self._end_update()
        self._claims.claim_optimizer(optimizer)
        self._go_on_with_step(optimizer)
        self._end_step()

    def _go_on_with_step(self, optimizer: Any) -> None:
        """An optimizer right after another ends the same step: one has the matrices, say, and one
        the rest.
        """
        ends = (number for number in reversed(range(len(self.marks))) if self._is_step(number))
        last = next(ends, None)
        since = {kind for _, kind, _ in self.marks[last:]} if last is not None else set()
        if last is None or since & {"forward_begin", "backward_begin"}:
            self._stepped.clear()
        elif id(optimizer) not in self._stepped:
            del self.marks[last]
            self.num_steps -= 1
        self._stepped.add(id(optimizer))

    def _is_step(self, number: int) -> bool:
        return self.marks[number][1] == "step"

    def _end_step(self) -> None:
        self._mark("step", self.num_steps)
        self.num_steps += 1
        if self.num_steps == _CLAIMED_STEP:
            self._claims.claim_everything()
        self._on_step(self.num_steps)
        if self._max_steps is not None and self.num_steps >= self._max_steps:
            raise StepsReached(0)
