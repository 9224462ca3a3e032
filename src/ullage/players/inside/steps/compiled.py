"""Beside torch's compiler: it sees the program as it would be without ullage.

While it traces, the hooks of all modules are out of its sight (it would trace them too, and compile
the program once more where what they do has changed), nothing is put off, and no value is followed:
what runs then runs on tensors without bytes. What it has compiled runs without hooks too, as it may
ask before each call whether there still are none; so a compiled module or function is entered and
left around its call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ullage.players.inside import torch_internals
from ullage.players.inside.import_hooks import on_import
from ullage.players.inside.part import Part
from ullage.players.inside.patches import Patches, around
from ullage.players.inside.steps.compiler import defer_import
from ullage.players.inside.steps.phases import Phases

if TYPE_CHECKING:
    from ullage.players.inside.weights.weights import SkippedWeights


# A bound method of these names is a whole call of its module.
_CALLS = ("__call__", "_call_impl", "_wrapped_call_impl", "_lazy_forward")


class Compiled(Part):
    """Watches torch's compiler. One for the process.

    weights: those that are put off, as a process of `ullage run` does; None: none are, and the
        compiler is imported when the program does, not later.
    """

    def __init__(self, torch: ModuleType, phases: Phases, weights: SkippedWeights | None) -> None:
        self._torch = torch
        self._phases = phases
        self._weights = weights
        self._patches = Patches()
        self._dynamo: Any = None  # torch._dynamo, once it is loaded
        self._num_traces = self._num_hiding = 0
        self._hidden: list[tuple[dict[int, Any], int, Any]] = []

    def install(self, patches: Patches) -> None:
        """Waits for the compiler."""
        self._patches = patches
        if self._weights is None:
            patches.on_undo(on_import("torch._dynamo", self._watch))
        else:
            defer_import(self._torch, self._watch)

    def _watch(self, dynamo: ModuleType) -> None:
        """Begins, when torch._dynamo has been loaded."""
        self._dynamo = dynamo
        modules = self._torch.nn.modules.module
        has_any = torch_internals.find(self._torch, "torch.nn.modules.module._has_any_global_hook")
        if has_any is not None:  # torch warns of global hooks: of those of the program alone
            hidden = around(lambda: bool(has_any()), self._hide, self._show)
            self._patches.replace(modules, "_has_any_global_hook", hidden)
        # Dynamo looks into every frame that a kernel in Python runs: all of ours are skipped.
        dynamo.trace_rules.add("ullage.players.inside")
        # Callbacks of the program's own may come and go, so the calls of all of them are watched.
        handler = dynamo.callback.callback_handler
        for name, note in (
            ("run_start_callbacks", self._begin_trace),
            ("run_end_callbacks", self._end_trace),
        ):
            self._patches.replace(handler, name, around(getattr(handler, name), note))
        context = dynamo.eval_frame._TorchDynamoContext
        self._patches.replace(context, "__call__", self._around_compile(context.__call__))
        self._patches.on_undo(on_import("torch._dynamo.aot_compile", self._watch_ahead))

    def _watch_ahead(self, aot_compile: Any) -> None:
        """Watches what is compiled ahead of its first call, traced without those callbacks."""
        name = "aot_compile_fullgraph"
        compile_ahead = around(getattr(aot_compile, name), self._begin_trace, self._end_trace)
        self._patches.replace(aot_compile, name, compile_ahead)

    def _begin_trace(self, *_: Any, **__: Any) -> None:
        self._num_traces += 1
        if self._num_traces == 1:
            self._hide()
            self._note_tracing(is_tracing=True)
            if self._weights is not None:
                self._weights.settle(is_reading=True)

    def _end_trace(self, *_: Any, **__: Any) -> None:
        self._num_traces -= 1
        if self._num_traces == 0:
            self._note_tracing(is_tracing=False)
            self._show()

    def _note_tracing(self, *, is_tracing: bool) -> None:
        self._phases.is_tracing = is_tracing
        if self._phases.values is not None:
            self._phases.values.is_tracing = is_tracing

    def _hide(self, *_: Any, **__: Any) -> None:
        self._num_hiding += 1
        if self._num_hiding > 1:
            return
        with_kwargs = self._torch.nn.modules.module._global_forward_hooks_with_kwargs
        for handle in self._phases.hooks:
            extra = [reference() for reference in handle.extra_dict_ref]
            # The last is not among what a handle of torch's own removes.
            for hooks in (handle.hooks_dict_ref(), *extra, with_kwargs):
                if handle.id in hooks:
                    self._hidden.append((hooks, handle.id, hooks.pop(handle.id)))

    def _show(self, *_: Any, **__: Any) -> None:
        """Puts the hooks back where they were: before the program's own."""
        self._num_hiding -= 1
        while self._hidden and not self._num_hiding:
            hooks, key, hook = self._hidden.pop()
            others = dict(hooks)
            hooks.clear()
            hooks |= {key: hook, **others}

    def _around_compile(self, compile_: Callable[..., Any]) -> Callable[..., Any]:
        """A compiled module is called as such, by way of hooks; a compiled function, or method, is
        entered here.
        """

        @functools.wraps(compile_)
        def compile_and_watch(context: Any, function: Any) -> Any:
            plain = self._unwatched(function)
            compiled = compile_(context, plain)
            is_module = isinstance(compiled, self._torch.nn.Module)
            if is_module or not hasattr(compiled, "_torchdynamo_orig_callable"):
                return compiled
            return self._watched(plain, compiled)

        return compile_and_watch

    def _unwatched(self, function: Any) -> Any:
        """The step of an optimizer without what `phases` put around it."""
        owner = getattr(function, "__self__", None)
        inner = getattr(function, "_torchdynamo_inline", None)
        if inner is None or not isinstance(owner, self._torch.optim.Optimizer):
            return function
        return inner.__get__(owner)

    def _watched(self, function: Any, compiled: Any) -> Any:
        run, hidden = self._runner(function), around(compiled, self._hide, self._show)
        is_step = self._optimizer_of(function) is not None

        @functools.wraps(compiled)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._num_traces or (self._is_eager() and not is_step):
                return compiled(*args, **kwargs)
            if self._is_eager():
                return run(compiled, args, kwargs)
            if self._weights is not None:
                self._weights.settle(is_reading=False)
            return run(hidden, args, kwargs)

        if hasattr(compiled, "_torchdynamo_wrapper_id"):  # by it torch finds what it has wrapped
            call._torchdynamo_wrapper_id = id(call)  # type: ignore[attr-defined]
        return call

    def _is_eager(self) -> bool:
        """True if the compiler is switched off, so that functions run as they were written."""
        stance = getattr(self._dynamo.eval_frame, "_stance", None)
        is_forced = getattr(stance, "stance", None) == "force_eager"
        return bool(self._dynamo.config.disable) or is_forced

    def _runner(self, function: Any) -> Callable[[Callable[..., Any], Any, Any], Any]:
        """The caller of a compiled function, so that its begin and end are known."""
        phases, owner = self._phases, getattr(function, "__self__", None)
        if isinstance(owner, self._torch.nn.Module):
            if getattr(function, "__name__", "") in _CALLS:
                return functools.partial(phases.call_module, owner)
            return lambda call, args, kwargs: call(*args, **kwargs)  # its module's hooks run
        optimizer = self._optimizer_of(function)
        if optimizer is not None:
            return lambda call, args, kwargs: phases.call_optimizer(
                optimizer, functools.partial(call, *args, **kwargs)
            )
        return lambda call, args, kwargs: phases.call_function(
            functools.partial(call, *args, **kwargs)
        )

    def _optimizer_of(self, function: Any) -> Any:
        """The optimizer whose step a function is, or does and no backward; None: neither."""
        kind, owner = self._torch.optim.Optimizer, getattr(function, "__self__", None)
        if isinstance(owner, kind):
            return owner
        code = getattr(function, "__code__", None)
        if code is None or "step" not in code.co_names or "backward" in code.co_names:
            return None
        known = inspect.getclosurevars(function)
        values = (*known.nonlocals.values(), *known.globals.values())
        return next((value for value in values if isinstance(value, kind)), None)
