"""Applies a plan to a script that knows nothing of it.

Optimizers are noted as they are made. The first call of a module that has parameters of one, with
gradients on, is the moment: the outermost module that holds it gets the plan, before it runs. After
that nothing stands between the script and torch, until another optimizer is made.

    install_from(os.environ, torch)     # before the script's first line
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NamedTuple
from weakref import WeakSet, ref

from ullage.errors import PlanError
from ullage.record import torch_internals
from ullage.record.owners.module_trees import live_owners, outermost, paths
from ullage.record.session.import_hooks import on_import
from ullage.record.session.tracebacks import clean_tracebacks
from ullage.techniques.applying.apply import apply_plan, describe_program
from ullage.techniques.applying.changes import Changes
from ullage.techniques.applying.moves import start_techniques, watch_moves
from ullage.techniques.applying.outcome import NEVER, State, note
from ullage.techniques.plan import Plan
from ullage.techniques.replaying.process import replay_and_end
from ullage.techniques.technique import Place


class Asked(NamedTuple):
    """What is asked of a process.

    Attributes:
        plan: to be applied to the first model that it trains; None applies nothing.
        directory: where it is noted what became of the plan.
        describes: whether the model is described there, with all its modules.
        replays: whether the plan is replayed with real numbers in place of the training.
    """

    plan: Plan | None
    directory: Path
    describes: bool
    replays: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Asked:
        """What the ULLAGE_* variables ask."""
        path = environment.get("ULLAGE_PLAN")
        return cls(
            Plan.load(path) if path else None,
            Path(environment.get("ULLAGE_PLAN_NOTES") or environment.get("ULLAGE_RUN_DIR", "")),
            environment.get("ULLAGE_DESCRIBE") == "1",
            environment.get("ULLAGE_REPLAY") == "1",
        )


def install_from(
    environment: Mapping[str, str],
    torch: ModuleType,
    wait: Callable[[], Asked] | None = None,
    step_aside: Callable[[], None] | None = None,
) -> None:
    """Installs the plan that the environment names, if any, or a description.

    wait: called when the model is first called; what it gives back is done then.
    step_aside: called before a replay: has what watches the process let it alone.
    """
    asked = Asked.from_environment(environment)
    if asked.plan is not None or asked.describes or wait is not None:
        Watch(asked, torch=torch, wait=wait, step_aside=step_aside).install()


def start() -> None:
    """Arranges for the plan to be applied in this process, when and if it imports torch."""
    environment = dict(os.environ)
    on_import("torch", lambda torch: install_from(environment, torch))
    show = sys.excepthook

    def clean_and_show(
        kind: type[BaseException], error: BaseException, _traceback: TracebackType | None
    ) -> None:
        clean_tracebacks(error)
        show(kind, error, error.__traceback__)

    sys.excepthook = clean_and_show


class Watch:
    """Waits for a model to be trained, and applies the plan to it."""

    def __init__(
        self,
        asked: Asked,
        *,
        torch: ModuleType,
        wait: Callable[[], Asked] | None = None,
        step_aside: Callable[[], None] | None = None,
    ) -> None:
        self._plan, self._directory, self._describes, self._replays = asked
        self._torch = torch
        self._wait_for_order = wait
        self._step_aside = step_aside
        self._is_applied = False
        self._is_broken = False
        self._waiting: Changes | None = None
        self._lock = threading.RLock()
        # The parameters as the optimizer got them: DeepSpeed puts others in their place.
        self._optimizers: list[tuple[ref[Any], list[ref[Any]]]] = []
        self._planned: WeakSet[Any] = WeakSet()
        self._settled: WeakSet[Any] = WeakSet()  # modules that need not be looked at again

    def install(self) -> None:
        """Notes optimizers from now on; a plan for a program without any waits for a call."""
        optimizer = self._torch.optim.Optimizer
        optimizer.__init__ = self._noting(optimizer.__init__)
        if self._plan is not None:
            start_techniques(self._plan, self._torch)
            watch_moves(self._plan, self._torch, self._optimizers_of, self._refuse)
        if self._plan is not None and self._plan.made_for.optimizer is None:
            self._wait()

    def _noting(self, make: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(make)
        def note_and_make(optimizer: Any, *arguments: Any, **named: Any) -> None:
            make(optimizer, *arguments, **named)
            self._note_optimizer(optimizer)

        return note_and_make

    def _note_optimizer(self, optimizer: Any) -> None:
        parameters = _parameters_of(optimizer)
        self._optimizers = [pair for pair in self._optimizers if pair[0]() is not None]
        self._optimizers.append((ref(optimizer), [ref(parameter) for parameter in parameters]))
        if self._is_applied and self._changes_optimizers() and self._is_planned(parameters):
            self._refuse(
                "an optimizer was made after the plan had been applied to its parameters, which "
                "has to do with the optimizer"
            )
        if not self._is_applied:
            note(self._directory, State.WAITING)
        self._wait()

    def _changes_optimizers(self) -> bool:
        from ullage.techniques.catalog import TECHNIQUES

        actions = self._plan.actions if self._plan is not None else ()
        return any(TECHNIQUES[action.technique].place is Place.OPTIMIZER for action in actions)

    def _is_planned(self, parameters: list[Any]) -> bool:
        known = {id(parameter) for model in self._planned for parameter in model.parameters()}
        return any(id(parameter) in known for parameter in parameters)

    def _wait(self) -> None:
        """Looks at each call of a module, before anything of it runs."""
        with self._lock:
            if self._waiting is not None:
                return
            kind = self._torch.nn.Module
            self._waiting = Changes()
            self._waiting.set(kind, "__call__", self._looking(kind.__call__))

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.undo()
            self._waiting = None

    def _looking(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def look_and_call(module: Any, *arguments: Any, **named: Any) -> Any:
            if self._waiting is not None and self._is_trained(module):
                with self._lock:
                    if self._waiting is not None:
                        self._meet(module, arguments, named)
            return call(module, *arguments, **named)

        # The compiler sees the call as it is without this.
        look_and_call._torchdynamo_inline = call  # type: ignore[attr-defined]
        skip = torch_internals.find(self._torch, "torch._C._dynamo.eval_frame.skip_code")
        if skip is not None:
            skip(look_and_call.__code__)  # type: ignore[attr-defined]
        return look_and_call

    def _is_trained(self, module: Any) -> bool:
        if module in self._settled or not self._torch.is_grad_enabled():
            return False
        if self._plan is not None and self._plan.made_for.optimizer is None:
            return next(module.parameters(), None) is not None
        return bool(self._optimizers_of(module))

    def _optimizers_of(self, module: Any) -> list[Any]:
        """The optimizers that there are which hold a parameter of the module, as they were made."""
        own = {id(parameter) for parameter in module.parameters()}
        found = []
        for reference, first in self._optimizers:
            optimizer = reference()
            if optimizer is not None:
                held = _parameters_of(optimizer) + [one() for one in first]
                if any(id(one) in own for one in held):
                    found.append(optimizer)
        return found

    def _meet(self, module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """A module is trained: what holds it gets the plan, or another one is waited for."""
        if self._wait_for_order is not None:
            wait, self._wait_for_order = self._wait_for_order, None
            self._plan, self._directory, self._describes, self._replays = wait()
        modules, _ = live_owners(self._torch)
        top = outermost(module, modules)
        optimizers = self._optimizers_of(top)
        is_it = self._plan is None or self._is_it(top)
        if not is_it and (self._is_applied or self._is_another_there(modules)):
            self._settle(top)
            return
        if self._replays and self._plan is not None:
            self._stop_waiting()
            replay_and_end(
                self._plan, self._directory, (top, optimizers, module, (arguments, named)),
                self._step_aside,
            )  # fmt: skip
        try:
            found = describe_program(top, optimizers) if self._describes else None
            if self._plan is not None:
                apply_plan(self._plan, top, optimizers)
        except BaseException as error:
            self._refuse(str(error) or type(error).__name__, error)
        if not self._is_applied:
            self._note_later_errors()
        self._is_applied = True
        self._planned.add(top)
        self._settle(top)
        self._stop_waiting()
        if not self._is_broken:
            note(self._directory, State.APPLIED, made_for=found)

    def _note_later_errors(self) -> None:
        """A technique that meets what it is not exact for ends the program with a PlanError: from
        now on each is noted as it is made, as the program may catch it and go on.
        """
        make = PlanError.__init__

        @functools.wraps(make)
        def make_and_note(error: PlanError, *arguments: object) -> None:
            make(error, *arguments)
            self._is_broken = True
            note(self._directory, State.BROKEN, str(error))

        PlanError.__init__ = make_and_note  # type: ignore[method-assign, assignment]

    def _settle(self, top: Any) -> None:
        self._settled.update(part for _, part in paths(top))

    def _is_it(self, top: Any) -> bool:
        return self._plan is None or self._plan.made_for.model == describe_program(top, None).model

    def _is_another_there(self, modules: list[Any]) -> bool:
        """Whether the model that the plan is for is trained too, but was not called yet."""
        named = self._plan.made_for.model if self._plan is not None else ""
        return any(
            type(module).__name__ == named and self._optimizers_of(module) for module in modules
        )

    def _refuse(self, reason: str, error: BaseException | None = None) -> None:
        """Notes that the plan is not applied, and ends the program with an error."""
        self._stop_waiting()
        note(self._directory, State.REFUSED, reason)
        if error is not None:
            raise error
        raise PlanError(f"{reason}; {NEVER}")


def _parameters_of(optimizer: Any) -> list[Any]:
    return [one for group in optimizer.param_groups for one in group["params"]]
