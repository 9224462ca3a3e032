"""Phases: where forward, backward and optimizer begin and end in the event sequence.

A root module is one that is called while no other is; the replicas that DataParallel calls, each in
a thread of its own, are parts of the one that calls them. What ends a step: steps.py.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from ullage.players.inside import library, torch_internals
from ullage.players.inside.owners.modules import Modules, is_replica
from ullage.players.inside.owners.ownership import Claims
from ullage.players.inside.owners.weight_copies import WeightCopies
from ullage.players.inside.part import Part
from ullage.players.inside.patches import Patches
from ullage.players.inside.requests import concurrent_callers
from ullage.players.inside.steps.input_shapes import count_tokens, find_shapes
from ullage.players.inside.steps.steps import Mark, StepKind, Steps
from ullage.players.inside.unseen import Unseen

if TYPE_CHECKING:
    from ullage.players.inside.values.values import Values

_CLAIMED_STEP = 1
"""The step after which every module and optimizer is looked for, which takes about 0.1 s."""
_MAX_PAYLOADS = 256


_ENTRANCES = (
    "_before_module", "_after_module", "_begin_function", "_leave_function", "_begin_backward",
    "_end_backward", "_before_optimizer", "_begin_update", "_end_update", "_leave_optimizer",
    "_after_optimizer",
)  # fmt: skip
"""Where the program calls what is here; each is guarded."""


class _Depth(threading.local):
    modules = 0
    is_in_function = False
    has_autocast = False
    is_moving = False


class Phases(Part):
    """Notes marks, and lets `claims` look for owners when their addresses are known.

    Args:
        torch: the module.
        claims, modules: of the process.
        unseen: guards the hooks.
        is_from_import: torch has just been imported, so that no class of optimizers has its step
            yet. torch wraps each, to call hooks; here it is wrapped once more. Later the
            optimizers' public hooks are used, which torch calls at the same places.
        max_steps: after how many the program ends; None: when it likes.
        on_mark: called with the kind of each mark.
        on_step: called after each step with how many there are.
        on_stop: called before the program is ended, with how many there are and their kind.

    Attributes:
        values: what follows small values, and has to know the phases; None: they are what they are.
        hooks: of all modules.
    """

    def __init__(
        self,
        torch: ModuleType,
        claims: Claims,
        modules: Modules,
        unseen: Unseen,
        *,
        is_from_import: bool,
        max_steps: int | None,
        on_mark: Callable[[str], None],
        on_step: Callable[[int], None],
        on_stop: Callable[[int, StepKind], None],
    ) -> None:
        self.marks: list[Mark] = []
        self.steps = Steps(
            torch, self.marks, max_steps=max_steps, on_step=self._after_step, on_stop=on_stop
        )
        self.values: Values | None = None
        self._torch = torch
        self._claims = claims
        self._copies = WeightCopies(torch, claims)
        self._modules = modules
        self._on_step = on_step
        self._on_mark = on_mark
        self._is_from_import = is_from_import
        self._depth = _Depth()
        self._num_backward = 0
        self._num_optimizer = 0
        self._num_failed = 0
        self._is_on = self._is_updating = False
        self.is_tracing = False  # the compiler runs a backward of its own
        self.hooks: tuple[Any, ...] = ()
        self._handles: tuple[Any, ...] = ()
        self._payloads: dict[str, object] = {}
        self._has_nodes = True
        for name in _ENTRANCES:
            setattr(self, name, self._guard(unseen, getattr(self, name)))
        self._release = self._guard(unseen, claims.release)
        self._claim_moved = self._guard(unseen, claims.claim_moved)
        self._see_optimizer = self._guard(unseen, self.steps.see_optimizer)

    def _guard(self, unseen: Unseen, entrance: Callable[..., Any]) -> Callable[..., Any]:
        """A guard that does nothing once the hooks are taken out, or one of them has ended all."""
        guarded, is_next_step = unseen.guard(entrance), entrance.__name__ == "_before_optimizer"

        @functools.wraps(entrance)
        def run(*arguments: Any) -> Any:
            if not self._is_on:
                return None
            if self._num_optimizer and not self._is_from_import:
                self._leave_raised_steps(is_in_next=is_next_step)
            return guarded(*arguments)

        return run

    def install(self, patches: Patches) -> None:
        """Registers the hooks."""
        self._is_on = True
        torch = self._torch
        modules, kind = torch.nn.modules.module, torch.optim.Optimizer
        self.hooks = (
            modules.register_module_forward_pre_hook(self._before_module),
            modules.register_module_forward_hook(
                self._after_module, with_kwargs=True, always_call=True
            ),
        )
        if self._is_from_import:
            around = staticmethod(self._around_step(kind.profile_hook_step))
            patches.replace(kind, "profile_hook_step", around)
        else:
            optimizer = optimizer_hooks(torch)
            self._handles = (
                optimizer.register_optimizer_step_pre_hook(self._before_optimizer),
                optimizer.register_optimizer_step_post_hook(
                    lambda stepped, *_: self._after_optimizer(stepped)
                ),
            )
        patches.replace(torch.nn.Module, "_apply", self._around_move(torch.nn.Module._apply))
        patches.replace(kind, "__init__", self._around_construction(kind.__init__))
        run_backward = torch_internals.find(torch, "torch.autograd._engine_run_backward")
        if run_backward is not None:
            watched = self._around_backward(run_backward)
            patches.replace(torch.autograd, "_engine_run_backward", watched)

    def begin(self) -> None:
        """Shows the library an autograd node."""
        self._has_nodes = self._modules.begin()

    def remarks(self) -> list[str]:
        """The remarks on what is not known of backward, and why steps did not count."""
        texts = [] if self.steps.remark is None else [self.steps.remark]
        if not self._has_nodes:
            texts.append(
                f"torch {self._torch.__version__} numbers autograd nodes in a way not known here: "
                "what backward allocates has no module"
            )
        return texts

    def end_early(self) -> None:
        """Notes nothing from here on; what is replaced stays until `remove`."""
        self._is_on = False

    def remove(self) -> None:
        """Takes the hooks out, and ends the program after no step from here on."""
        self.end_early()
        self.steps.count_without_end()
        with_kwargs = self._torch.nn.modules.module._global_forward_hooks_with_kwargs
        for handle in (*self.hooks, *self._handles):
            handle.remove()
            if handle.id in with_kwargs:  # torch's handle leaves it there
                del with_kwargs[handle.id]
        self.hooks = self._handles = ()

    def _leave_raised_steps(self, *, is_in_next: bool) -> None:
        """torch calls no hook after a step that raised: it is over where what torch puts around
        each step is no longer on a stack.
        """
        around = self._torch.optim.Optimizer.profile_hook_step.__code__.co_consts
        num_running = 0
        for frame in sys._current_frames().values():
            at: FrameType | None = frame
            while at is not None:
                num_running += at.f_code in around
                at = at.f_back
        del frame  # a frame that holds itself would keep the program's variables
        while self._num_optimizer > num_running - is_in_next:
            Phases._leave_optimizer(self)

    def keep_marks_from(self, first: int) -> None:
        """Forgets the marks before a position."""
        self.marks[:] = [mark for mark in self.marks if mark[0] >= first]

    def keep_last_marks(self, count: int) -> int:
        """Forgets all marks but this many of the newest; returns how many those were."""
        excess = max(0, len(self.marks) - count)
        del self.marks[:excess]
        return excess

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
        """True if a backward or an optimizer runs: a module called now starts no forward."""
        return self._num_backward > 0 or self._num_optimizer > 0

    def _mark(self, kind: str, payload: object = None) -> None:
        if payload is not None:  # one object for equal ones: many marks, and few that differ
            if len(self._payloads) > _MAX_PAYLOADS:
                self._payloads.clear()
            payload = self._payloads.setdefault(repr(payload), payload)
        self.marks.append((library.position(), kind, payload))
        self._on_mark(kind)

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
            if self.values is not None:
                self.values.begin_backward()
            self.steps.see_backward()
            self._mark("backward_begin")

    def _end_backward(self) -> None:
        self._num_backward -= 1
        if self._num_backward == 0:
            self._mark("backward_end")
            self.steps.end_backward()
            self._claims.claim_gradients()
            if self.values is not None:
                self.values.end_backward()

    def _around_construction(self, construct: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(construct)
        def construct_and_note(optimizer: Any, *arguments: Any, **kwargs: Any) -> None:
            __tracebackhide__ = True
            construct(optimizer, *arguments, **kwargs)
            self._see_optimizer()

        return construct_and_note

    def _around_step(self, hook_step: Callable[..., Any]) -> Callable[..., Any]:
        """The compiler would see a hook, and break the graph at it, where it looks through this."""

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
        if self.values is not None:
            self.values.forget_optimizer(optimizer)
        if len(arguments) > 1 and callable(arguments[1]):
            closure, rest = self._around_closure(arguments[1]), arguments[2:]
            return (arguments[0], closure, *rest), kwargs
        if callable(kwargs.get("closure")):
            return arguments, kwargs | {"closure": self._around_closure(kwargs["closure"])}
        self._begin_update()
        return None

    def _begin_update(self, *losses: Any) -> None:
        self._is_updating = True
        if self.values is not None:
            self.values.begin_update(*losses)
        self._mark("optimizer_begin")

    def _end_update(self) -> None:
        self._is_updating = False
        self._mark("optimizer_end")
        if self.values is not None:
            self.values.end_update()

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
    """The named arguments of the module's call that runs, as in torch's own function."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_call_impl":
        frame = frame.f_back
    return {} if frame is None else frame.f_locals.get("kwargs", {})


def optimizer_hooks(torch: ModuleType) -> Any:
    """The module with what registers hooks of all optimizers: torch.optim hides it."""
    return importlib.import_module(f"{torch.__name__}.optim.optimizer")
