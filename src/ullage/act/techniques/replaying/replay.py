"""Replays a plan on twins of a model that are small enough to train in seconds.

The ways to make a model smaller are tried in order, the smallest first, until a twin trains without
the plan. Then twins that are identical to the bit train with the plan. Actions on modules that no
twin has called, and intended changes of the training, are reported as not replayed.

    replay(plan, model, optimizers, called, (arguments, keywords))
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

from ullage.act.techniques.applying.apply import describe_program
from ullage.act.techniques.catalog import TECHNIQUES
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.replaying.calls import Smaller
from ullage.act.techniques.replaying.outcome import Replayed, error_text
from ullage.act.techniques.replaying.thinning import Thin, thinned
from ullage.act.techniques.replaying.training import NUM_STEPS, Script, Training, compare, train
from ullage.act.techniques.replaying.twin import CannotReplayError, Rows, make_twin, num_elements
from ullage.act.techniques.technique import Action, Place, Semantics
from ullage.ground.errors import PlanError
from ullage.ground.host_free import available_host_bytes
from ullage.players.inside.owners.module_trees import class_name, paths, unwrapped

_ROWS, _LENGTH = 2, 16
_MOST_BYTES = 3 << 30
# For each parameter: weight, gradient, states, and the results of the untreated training.
_COPIES = 6
# Two modules of each kind remain if the model then has at most this many parameters.
_TWO, _MANY = 2, 20_000_000
_CHUNKED = "chunked_loss"
_NOTHING_FITS = "no way to make it small was tried"


class _Way(NamedTuple):
    """A way to make a model smaller: how many modules remain of those that are alike (None: all),
    whether rows of embeddings are dropped, the length of sequences (None: the program's), and
    whether numbers are in double precision.
    """

    num_alike: int | None
    leaves_rows_out: bool
    length: int | None
    is_double: bool


@dataclass(frozen=True, slots=True)
class Model:
    """The call that is replayed.

    Attributes:
        root: the model without wrappers.
        optimizers: the optimizers of the model.
        path: the path of the module that the program called.
        call: the positional and keyword arguments of that call.
        kinds: the class of each module, by its path.
    """

    root: Any
    optimizers: list[Any]
    path: str
    call: tuple[tuple[Any, ...], dict[str, Any]]
    kinds: Mapping[str, str]


def replay(plan: Plan, top: Any, optimizers: list[Any], called: Any, call: Any) -> Replayed:
    """The result of a plan's replay; errors are part of the result."""
    started_s = time.monotonic()
    actions, not_done = _split(plan)
    root = unwrapped(top)
    replayed = Replayed(not_done=not_done)
    if actions:
        path = next((path for path, module in paths(root) if module is unwrapped(called)), "")
        kinds = {path: class_name(module) for path, module in paths(root)}
        replayed = _replay(Model(root, optimizers, path, call, kinds), actions, not_done)
    return replace(replayed, seconds=round(time.monotonic() - started_s, 3))


def _split(plan: Plan) -> tuple[tuple[Action, ...], dict[str, str]]:
    """The actions that must not change results, and why the others are not replayed."""
    actions, not_done = [], dict[str, str]()
    for action in plan.actions:
        technique = TECHNIQUES[action.technique]
        if technique.apply is None:
            continue  # settings of the allocator do not affect results
        if technique.place is Place.RANKS or technique.needs_ranks:
            not_done[action.technique] = "it needs several ranks"
        elif technique.semantics is Semantics.ROUNDING:
            not_done[action.technique] = "it rounds otherwise on purpose"
        elif technique.semantics is Semantics.TRAINING:
            not_done[action.technique] = "it changes the training on purpose"
        else:
            actions.append(action)
    return tuple(actions), not_done


def _replay(model: Model, actions: tuple[Action, ...], not_done: dict[str, str]) -> Replayed:
    first_reason = ""
    for length, is_double, (num_alike, leaves_rows_out) in product(
        (_LENGTH, None), (True, False), ((2, True), (1, True), (None, True), (None, False))
    ):
        way = _Way(num_alike, leaves_rows_out, length, is_double)
        try:
            replayed = _try(model, actions, way)
        except CannotReplayError as error:
            reason = str(error)
        except Exception as error:  # the program's own code may raise anything
            reason = error_text(error)
        else:
            return replace(replayed, not_done={**not_done, **replayed.not_done})
        first_reason = first_reason or reason
    names = {action.technique: first_reason or _NOTHING_FITS for action in actions}
    return Replayed(not_done={**not_done, **names})


def _try(model: Model, actions: tuple[Action, ...], way: _Way) -> Replayed:
    import torch

    dtype = torch.float64 if way.is_double else torch.float32
    rows = Rows.of(model.root) if way.leaves_rows_out else Rows.none()
    with thinned(model.root, actions, way.num_alike) as thin:
        _check_size(model.root, rows, dtype)
        if way.num_alike == _TWO and num_elements(model.root, rows) > _MANY and thin.num_left_out:
            raise CannotReplayError("one module of a kind is enough of a large model")
        smaller = Smaller.of(
            model.call, num_rows=_ROWS, length=way.length, num_tokens=_num_tokens(model.root, rows)
        )
        script = Script(
            model.path,
            lambda step: smaller.draw(model.call, dtype, step),
            any(action.technique == _CHUNKED for action in actions),
            dtype,
        )

        def make() -> tuple[Any, list[Any]]:
            return make_twin(model.root, model.optimizers, dtype, rows)

        untreated = train(make, script, lambda *_: None)
        if not all(torch.isfinite(torch.tensor(untreated.losses))):
            raise CannotReplayError("its loss of random numbers is not a number")
        reductions = _in_words(thin, rows, smaller)
        replayed = _judge(model, thin, actions, lambda some: _treat(make, script, some), untreated)
        return replace(replayed, reduced=reductions, precision=str(dtype).removeprefix("torch."))


def _treat(make: Any, script: Script, actions: Sequence[Action]) -> Training:
    def plan_for(model: Any, optimizers: list[Any]) -> Plan:
        module_paths = [path for action in actions for path in action.modules]
        return Plan(tuple(actions), describe_program(model, optimizers, module_paths))

    return train(make, script, plan_for)


def _judge(
    model: Model, thin: Thin, actions: tuple[Action, ...], treat: Any, untreated: Training
) -> Replayed:
    """Trains with the plan; actions that only the twin refuses are reported as not replayed."""
    import torch

    not_done: dict[str, str] = {}
    pending = [action for action in thin.actions if action.modules or not _is_for_modules(action)]
    dtype = next(iter(untreated.values.values())).dtype if untreated.values else torch.float64
    while pending:
        try:
            treated = treat(pending)
        except PlanError as error:
            refuser = next(
                (action for action in pending if repr(action.technique) in str(error)), None
            )
            if refuser is None or _is_for_modules(refuser):
                return Replayed(not_done=not_done, difference=f"refused: {error}")
            # It may refuse our training loop, which replaces the program's.
            not_done[refuser.technique] = f"the twin is refused: {error}"
            pending.remove(refuser)
            continue
        except Exception as error:
            return Replayed(not_done=not_done, difference=f"it fails with {error_text(error)}")
        difference = compare(treated, untreated, dtype)
        done, more = _covered(model.kinds, thin, actions, pending, untreated.called)
        return Replayed(
            done=done,
            not_done={**not_done, **more},
            difference=difference.text,
            loss_diff=difference.loss,
            gradient_diff=difference.gradient,
            parameter_diff=difference.parameter,
            num_steps=NUM_STEPS,
        )
    return Replayed(not_done=not_done)


def _covered(
    kinds: Mapping[str, str],
    thin: Thin,
    actions: Sequence[Action],
    replayed: Sequence[Action],
    called: Set[str],
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Which actions were replayed on how many modules, and which were not, for people.

    Args:
        kinds: the class of each module, by its path.
        thin: the thinned model.
        actions: of the plan.
        replayed: the actions that were replayed.
        called: the paths of the modules that the untreated twin calls.
    """
    done, not_done = [], dict[str, str]()
    names = {action.technique for action in replayed}
    for action in actions:
        if action.technique not in names:
            continue
        if not action.modules:
            done.append(action.technique)
            continue
        count = Counter[str]()
        total = Counter(kinds[path] for path in action.modules)
        for path in action.modules:
            if thin.stands_for.get(path) in called:
                count[kinds[path]] += 1
        for kind, num in total.items():
            if count[kind]:
                done.append(f"{action.technique} on {count[kind]} of {num} {kind}")
            if count[kind] < num:
                not_done[f"{action.technique} on {num - count[kind]} of {num} {kind}"] = (
                    "the first call of the model does not call them"
                )
    return tuple(done), not_done


def _is_for_modules(action: Action) -> bool:
    return TECHNIQUES[action.technique].place is Place.MODULES


def _num_tokens(root: Any, rows: Rows) -> int:
    from torch import nn

    tables = [module for module in root.modules() if isinstance(module, nn.Embedding)]
    return max((rows.shape(table.weight)[0] for table in tables), default=2)


def _check_size(root: Any, rows: Rows, dtype: Any) -> None:
    num_bytes = num_elements(root, rows) * dtype.itemsize * _COPIES
    free_bytes = available_host_bytes()
    most = _MOST_BYTES // 2 if free_bytes is None else min(_MOST_BYTES, free_bytes // 2)
    if num_bytes > most:
        raise CannotReplayError(
            f"its training takes {num_bytes / 2**30:.1f} GiB of host memory, and "
            f"{most / 2**30:.1f} GiB are allowed"
        )


def _in_words(thin: Thin, rows: Rows, smaller: Smaller) -> str:
    reductions = [smaller.text]
    if thin.num_left_out:
        reductions.append(f"{thin.num_left_out} modules that are like others left out")
    if rows.sizes:
        reductions.append(f"{', '.join(map(str, sorted(rows.sizes)))} rows of embeddings made 1024")
    return ", ".join(reductions)
