"""The phases of a step, by hooks that can be taken out again.

`ullage run` wraps the step of each class of optimizers as torch makes it. Here the classes may be
there already, so the optimizers' public hooks are used, which torch calls at the same places.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from ullage.record import library, torch_internals
from ullage.record.import_hooks import on_import
from ullage.record.owners.modules import Modules
from ullage.record.owners.ownership import Claims
from ullage.record.patches import Patches
from ullage.record.steps.batch_waits import BatchWaits
from ullage.record.steps.compiled import Compiled
from ullage.record.steps.phases import Following, Phases
from ullage.record.steps.steps import StepKind
from ullage.record.unseen import Unseen

_DYNAMO = "torch._dynamo"
_MAX_PAYLOADS = 256


class RemovablePhases(Phases):
    """Phases in a process that may go on without them.

    Args:
        torch, claims, modules: as for `Phases`.
        patches: what holds the attributes that are replaced.
        on_step: called after each step with how many there are.
        unseen: guards the hooks.
    """

    def __init__(
        self,
        torch: ModuleType,
        claims: Claims,
        modules: Modules,
        *,
        patches: Patches,
        on_step: Callable[[int], None],
        unseen: Unseen,
    ) -> None:
        nothing = Following()
        super().__init__(
            torch,
            claims,
            modules,
            max_steps=None,
            on_step=self._end_step,
            on_stop=_never_stop,
            values=nothing,
            unseen=unseen,
        )
        self.batch_waits = BatchWaits(torch)
        self._end_recorded_step = on_step
        self._patches = patches
        self._handles: list[Any] = []
        self._compiled = Compiled(torch, self, nothing, nothing, patches)
        self._call_off: Callable[[], None] = lambda: None
        self._is_on = False
        self._num_steps_called = 0
        self._payloads: dict[str, object] = {}

    def install(self) -> None:
        """Registers the hooks."""
        torch = self._torch
        self._is_on = True
        modules, optimizer = torch.nn.modules.module, optimizer_hooks(torch)
        self.hooks = (
            modules.register_module_forward_pre_hook(self._before_module),
            modules.register_module_forward_hook(
                self._after_module, with_kwargs=True, always_call=True
            ),
        )
        self._handles = [
            *self.hooks,
            optimizer.register_optimizer_step_pre_hook(self._before_optimizer),
            optimizer.register_optimizer_step_post_hook(self._guard(self._after_step_hook)),
        ]
        moved = self._around_move(torch.nn.Module._apply)
        self._patches.replace(torch.nn.Module, "_apply", moved)
        kind = torch.optim.Optimizer
        construct = self._around_construction(kind.__init__)
        self._patches.replace(kind, "__init__", construct)
        run_backward = torch_internals.find(torch, "torch.autograd._engine_run_backward")
        if run_backward is not None:
            watched = self._around_backward(run_backward)
            self._patches.replace(torch.autograd, "_engine_run_backward", watched)
        self.batch_waits.install(self._patches)
        if _DYNAMO in sys.modules:
            self._compiled.install(sys.modules[_DYNAMO])
        else:
            self._call_off = on_import(_DYNAMO, self._compiled.install)

    def remove(self) -> None:
        """Takes the hooks out; `Patches.undo` does the rest."""
        self._is_on = False
        self.batch_waits.remove()
        self._call_off()
        self._compiled.call_off()
        with_kwargs = self._torch.nn.modules.module._global_forward_hooks_with_kwargs
        for handle in self._handles:
            handle.remove()
            if handle.id in with_kwargs:  # torch's handle leaves it there
                del with_kwargs[handle.id]
        self._handles = []

    @property
    def num_optimizer_steps(self) -> int:
        """How often an optimizer has stepped."""
        return self._num_steps_called

    def _after_step_hook(self, optimizer: Any, _arguments: Any, _kwargs: Any) -> None:
        self._num_steps_called += 1
        self._after_optimizer(optimizer)

    def _end_step(self, count: int) -> None:
        self.batch_waits.end_step()
        self._end_recorded_step(count)

    def _guard(self, entrance: Callable[..., Any]) -> Callable[..., Any]:
        """What does nothing once the hooks are taken out, or one of them has failed."""
        guarded = super()._guard(entrance)

        @functools.wraps(entrance)
        def run(*arguments: Any) -> Any:
            if not self._is_on:
                return None
            if self._num_optimizer:
                self._leave_raised_steps(is_in_next=entrance.__name__ == "_before_optimizer")
            return guarded(*arguments)

        return run

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
        """Forgets the oldest marks but so many; returns how many those were."""
        excess = max(0, len(self.marks) - count)
        del self.marks[:excess]
        return excess

    def end_early(self) -> None:
        """Notes nothing from here on; what is replaced stays until `remove`."""
        self._is_on = False

    def _mark(self, kind: str, payload: object = None) -> None:
        super()._mark(kind, None if payload is None else self._shared(payload))

    def _shared(self, payload: object) -> object:
        """One object for equal payloads: a long run has many marks, and few that differ."""
        if len(self._payloads) > _MAX_PAYLOADS:
            self._payloads.clear()
        return self._payloads.setdefault(repr(payload), payload)

    def here(self) -> int:
        """The position in the events."""
        return int(library.position())


def optimizer_hooks(torch: ModuleType) -> Any:
    """The module with what registers hooks of all optimizers: torch.optim hides it."""
    return importlib.import_module(f"{torch.__name__}.optim.optimizer")


def _never_stop(_num_steps: int, _kind: StepKind) -> None:
    """A recorded program runs to its end."""
