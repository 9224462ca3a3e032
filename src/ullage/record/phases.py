"""Phases: where forward, backward and optimizer begin and end in the event sequence.

A root module is one that is called while no other is. A step ends with optimizer.step(); a program
without an optimizer steps with its root module's forward.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ullage.record import library
from ullage.record.ownership import Claims
from ullage.record.values import Values

Mark = tuple[int, str, Any]


class StepsReached(SystemExit):
    """Ends the program after the number of steps that was asked for, as sys.exit(0) would."""


class _Depth(threading.local):
    modules = 0


class Phases:
    """Notes marks, and lets `claims` look for owners when their addresses are known."""

    def __init__(
        self,
        torch: ModuleType,
        claims: Claims,
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
        self._max_steps = max_steps
        self._on_step = on_step
        self._values = values
        self._depth = _Depth()
        self._num_backward = 0
        self._num_optimizer = 0
        self._num_failed = 0
        self._is_updating = False

    def install(self) -> None:
        """Registers the hooks; nothing is undone, the process ends with them."""
        torch = self._torch
        torch.nn.modules.module.register_module_forward_pre_hook(self._before_module)
        torch.nn.modules.module.register_module_forward_hook(
            self._after_module, with_kwargs=True, always_call=True
        )
        optimizers = sys.modules[torch.optim.Optimizer.__module__]
        optimizers.register_optimizer_step_pre_hook(self._before_optimizer)
        optimizers.register_optimizer_step_post_hook(self._after_optimizer)
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

    @property
    def is_busy(self) -> bool:
        """Whether a backward or an optimizer runs: a module called now starts no forward."""
        return self._num_backward > 0 or self._num_optimizer > 0

    def _mark(self, kind: str, payload: object = None) -> None:
        self.marks.append((library.position(), kind, payload))

    def _before_module(self, module: Any, _arguments: Any) -> None:
        self._depth.modules += 1
        if self._depth.modules == 1 and not self.is_busy:
            self._claims.claim_module(module)
            self._mark("forward_begin", {"grad": self._torch.is_grad_enabled()})

    def _after_module(self, _module: Any, _arguments: Any, *named_and_output: Any) -> None:
        self._depth.modules -= 1
        if self._depth.modules == 0 and not self.is_busy:
            self._mark("forward_end")
            if len(named_and_output) != 2:  # after an exception torch leaves out the named ones
                self._num_failed += 1
                return
            self._claims.claim_cache(*named_and_output)
            if not self.has_optimizer and not self._torch.is_grad_enabled():
                self._end_step()

    def _around_backward(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def run_backward(*arguments: Any, **named: Any) -> Any:
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
            # An exception in forward may have left the count high: a backward from user code starts
            # at the top.
            self._depth.modules = (
                0 if threading.current_thread() is threading.main_thread() else self._depth.modules
            )
            self._values.pause()
            self._mark("backward_begin")

    def _end_backward(self) -> None:
        self._num_backward -= 1
        if self._num_backward == 0:
            self._mark("backward_end")
            self._claims.claim_gradients()
            self._values.resume()

    def _before_optimizer(self, optimizer: Any, arguments: Any, named: Any) -> Any:
        self._num_optimizer += 1
        if self._num_optimizer > 1:
            return None
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

    def _after_optimizer(self, optimizer: Any, _arguments: Any, _named: Any) -> None:
        self._num_optimizer -= 1
        if self._num_optimizer:
            return
        self._end_update()
        self._claims.claim_optimizer(optimizer)
        self._end_step()

    def _end_step(self) -> None:
        self._mark("step", self.num_steps)
        self.num_steps += 1
        self._on_step(self.num_steps)
        if self._max_steps is not None and self.num_steps >= self._max_steps:
            raise StepsReached(0)
