"""Applies a plan to an unchanged script.

Optimizers are recorded when they are created. When a module with parameters of one of them is first
called with gradients enabled, the plan is applied to the outermost module that contains it, before
the call runs. After that, nothing is between the script and torch until another optimizer is
created.

    install_from(os.environ, torch)     # before the script's first line
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakSet, ref

from ullage.act.techniques.applying.apply import describe_program
from ullage.act.techniques.applying.changes import Changes
from ullage.act.techniques.applying.default_rungs import choose_plans
from ullage.act.techniques.applying.outcome import NEVER, State, note
from ullage.act.techniques.applying.target import change_all
from ullage.act.techniques.catalog import TECHNIQUES
from ullage.act.techniques.means.optimizer_parts import parameters_of
from ullage.act.techniques.means.sharing.rank_groups import program_has_ranks
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.replaying.process import replay_and_end
from ullage.act.techniques.technique import Place
from ullage.ground.errors import PlanError
from ullage.ground.protocol.run import PlanVariables
from ullage.ground.protocol.variables import RUN_DIR
from ullage.players.inside import torch_internals
from ullage.players.inside.import_hooks import on_import
from ullage.players.inside.owners.module_trees import class_name, live_owners, outermost, paths
from ullage.players.inside.process.tracebacks import show_clean_tracebacks

# Runs the parts of techniques that come before training: before the first line of a script, and
# when it moves its model to its device.

Move = Callable[..., Any]


def start_techniques(plan: Plan, torch: ModuleType) -> None:
    """Calls the `start` of each technique once, before the first line of a script."""
    starts = [TECHNIQUES[action.technique].start for action in plan.actions]
    for start in dict.fromkeys(start for start in starts if start is not None):
        start(torch)


def watch_moves(
    plan: Plan,
    torch: ModuleType,
    optimizers_of: Callable[[Any], list[Any]],
    refuse: Callable[[str, BaseException], None],
) -> None:
    """Applies techniques with an `on_move` when the model of a plan is moved.

    Args:
        plan: without such techniques nothing is watched.
        torch: the module, imported.
        optimizers_of: returns the optimizers with parameters of a module.
        refuse: called with a reason and an error if the plan cannot be applied.
    """
    steps = [(TECHNIQUES[action.technique].on_move, action) for action in plan.actions]
    if not any(on_move for on_move, _ in steps):
        return

    def apply(module: Any) -> None:
        try:
            change_all(module, optimizers_of(module), steps).keep()
        except BaseException as error:
            refuse(str(error), error)

    moves = _Moves(plan, torch, apply)
    module = torch.nn.Module
    module.to = moves.watched(module.to, torch._C._nn._parse_to)
    module.cuda = moves.watched(module.cuda, lambda device=None: (_cuda(torch, device), None))


class _Moves:
    def __init__(
        self,
        plan: Plan,
        torch: ModuleType,
        apply: Callable[[Any], None],
    ) -> None:
        self._made_for = replace(plan.made_for, optimizer=None)
        self._torch = torch
        self._apply = apply
        self._moved: WeakSet[Any] = WeakSet()

    def watched(self, move: Move, parse: Callable[..., Any]) -> Move:
        """A method that moves modules, and applies the techniques to the model of the plan."""
        to = self._torch.nn.Module.to

        @functools.wraps(move)
        def move_or_apply(module: Any, *arguments: Any, **keywords: Any) -> Any:
            if type(module).__name__ != self._made_for.model and module not in self._moved:
                return move(module, *arguments, **keywords)
            device, precision, *_ = parse(*arguments, **keywords)
            if module not in self._moved and not self._is_it(module, device):
                return move(module, *arguments, **keywords)
            if precision is not None:
                to(module, precision)
            if module not in self._moved:
                self._apply(module)
                self._moved.add(module)
            return module

        return move_or_apply

    def _is_it(self, module: Any, device: Any) -> bool:
        """True if this moves the model of the plan to the device where it is trained."""
        torch = self._torch
        if device is None or (device.type != "cuda" and torch.cuda.is_available()):
            return False
        if program_has_ranks():
            return False
        program = describe_program(module, None, self._made_for.modules)
        return not self._made_for.differences(program)


def _cuda(torch: ModuleType, device: Any) -> Any:
    if device is None or isinstance(device, int):
        return torch.device("cuda")
    return torch.device(device)


class PlanRequest(NamedTuple):
    """The request to a process to apply a plan.

    Attributes:
        plan: applied to the first model that the process trains; None: nothing is applied.
        directory: where the outcome is written.
        describes: whether a description of the model and all its modules is written there.
        replays: whether the plan is replayed with real numbers in place of the training.
    """

    plan: Plan | None
    directory: Path
    describes: bool
    replays: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> PlanRequest:
        """The request in the ULLAGE_* variables."""
        variables = PlanVariables.from_environment(environment)
        return cls(
            None if variables.plan is None else Plan.load(variables.plan),
            variables.notes or Path(environment.get(RUN_DIR, "")),
            variables.describes,
            variables.replays,
        )


def install_from(
    environment: Mapping[str, str],
    torch: ModuleType,
    wait: Callable[[], PlanRequest] | None = None,
    step_aside: Callable[[], None] | None = None,
) -> None:
    """Installs the plan that the environment names, if any, or a description.

    Args:
        environment: the variables of the process.
        torch: the module, imported.
        wait: called when the model is first called; returns the request to execute then.
        step_aside: called before a replay; ends the recording of this process.
    """
    request = PlanRequest.from_environment(environment)
    if request.plan is not None or request.describes or wait is not None:
        Watch(request, torch=torch, wait=wait, step_aside=step_aside).install()


def start() -> None:
    """Applies the plan in this process once it imports torch."""
    environment = dict(os.environ)

    def install(torch: ModuleType) -> None:
        request = PlanRequest.from_environment(environment)
        note(request.directory, State.WAITING, "the program imported torch, and made no optimizer")
        is_first = environment.get("RANK", "0") == "0"  # the other ranks would say the same
        Watch(request, torch=torch, says=is_first).install()

    on_import("torch", install)
    show_clean_tracebacks()


class Watch:
    """Waits until a model is trained, and applies the plan to it."""

    def __init__(
        self,
        request: PlanRequest,
        *,
        torch: ModuleType,
        wait: Callable[[], PlanRequest] | None = None,
        step_aside: Callable[[], None] | None = None,
        says: bool = False,
    ) -> None:
        self._says = says
        self._plan, self._directory, self._describes, self._replays = request
        self._torch = torch
        self._wait_for_order = wait
        self._step_aside = step_aside
        self._is_applied = False
        self._is_broken = False
        self._waiting: Changes | None = None
        self._lock = threading.RLock()
        # The original parameters of each optimizer: DeepSpeed replaces them.
        self._optimizers: list[tuple[ref[Any], list[ref[Any]]]] = []
        self._planned: WeakSet[Any] = WeakSet()
        self._settled: WeakSet[Any] = WeakSet()  # modules that need not be looked at again

    def install(self) -> None:
        """Records optimizers from now on; a plan without optimizer waits for a call."""
        optimizer = self._torch.optim.Optimizer
        optimizer.__init__ = self._noting(optimizer.__init__)
        if self._plan is not None:
            start_techniques(self._plan, self._torch)
            watch_moves(self._plan, self._torch, self._optimizers_of, self._refuse)
        if self._plan is not None and self._plan.made_for.optimizer is None:
            self._wait()

    def _noting(self, make: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(make)
        def note_and_make(optimizer: Any, *arguments: Any, **keywords: Any) -> None:
            make(optimizer, *arguments, **keywords)
            self._note_optimizer(optimizer)

        return note_and_make

    def _note_optimizer(self, optimizer: Any) -> None:
        parameters = parameters_of(optimizer)
        self._optimizers = [pair for pair in self._optimizers if pair[0]() is not None]
        self._optimizers.append((ref(optimizer), [ref(parameter) for parameter in parameters]))
        if self._is_applied and self._changes_optimizers() and self._is_planned(parameters):
            self._refuse(
                "an optimizer was made after the plan had been applied to its parameters, and the "
                "plan changes the optimizer"
            )
        if not self._is_applied:
            note(self._directory, State.WAITING)
        self._wait()

    def _changes_optimizers(self) -> bool:
        actions = self._plan.actions if self._plan is not None else ()
        return any(TECHNIQUES[action.technique].place is Place.OPTIMIZER for action in actions)

    def _is_planned(self, parameters: list[Any]) -> bool:
        known = {id(parameter) for model in self._planned for parameter in model.parameters()}
        return any(id(parameter) in known for parameter in parameters)

    def _wait(self) -> None:
        """Intercepts each call of a module, before it runs."""
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
        def look_and_call(module: Any, *arguments: Any, **keywords: Any) -> Any:
            if self._waiting is not None and self._is_trained(module):
                with self._lock:
                    if self._waiting is not None:
                        self._meet(module, arguments, keywords)
            return call(module, *arguments, **keywords)

        # The compiler traces the original call.
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
        own = {id(parameter) for parameter in module.parameters()}
        optimizers = []
        for reference, first in self._optimizers:
            optimizer = reference()
            if optimizer is not None:
                parameters = parameters_of(optimizer) + [parameter() for parameter in first]
                if any(id(parameter) in own for parameter in parameters):
                    optimizers.append(optimizer)
        return optimizers

    def _meet(self, module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Handles the first training call of a module: applies the plan to its outermost module, or
        waits for another module.
        """
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
                self._plan, self._directory, (top, optimizers, module, (arguments, keywords)),
                self._step_aside,
            )  # fmt: skip
        try:
            program = describe_program(top, optimizers) if self._describes else None
            rungs = _rungs_for(top, optimizers) if self._describes else ()
            if self._plan is not None:
                self._plan.apply(top, optimizers)
        except BaseException as error:
            self._refuse(str(error) or type(error).__name__, error)
        if not self._is_applied:
            self._note_later_errors()
        self._is_applied = True
        self._planned.add(top)
        self._settle(top)
        self._stop_waiting()
        if not self._is_broken:
            note(self._directory, State.APPLIED, made_for=program, rungs=rungs)
            if self._says and self._plan is not None:
                text = f"ullage: plan: {self._plan.summary} of {class_name(top)}"
                print(text, file=sys.stderr, flush=True)

    def _note_later_errors(self) -> None:
        """Writes the outcome at each PlanError from now on. A technique raises one when it is not
        exact for the program, and the program may catch it and go on.
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
        """True if the model of the plan is also trained, but was not called yet."""
        model_class = self._plan.made_for.model if self._plan is not None else ""
        return any(
            type(module).__name__ == model_class and self._optimizers_of(module)
            for module in modules
        )

    def _refuse(self, reason: str, error: BaseException | None = None) -> None:
        """Writes that the plan is refused, and ends the program with an error."""
        self._stop_waiting()
        note(self._directory, State.REFUSED, reason)
        if error is not None:
            raise error
        raise PlanError(f"{reason}; {NEVER}")


def _rungs_for(top: Any, optimizers: list[Any]) -> Sequence[Plan]:
    """The plans that a guard without a ladder takes; none for a model without repeated blocks."""
    try:
        return choose_plans(top, optimizers)
    except PlanError:
        return ()
