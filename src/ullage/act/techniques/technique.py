"""A technique: its name, what it changes of the training, and how it is applied.

Each file `techniques/NAME.py` holds one technique and the code that applies it. It imports torch
only when it is applied. catalog.py lists all techniques.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

from ullage.ground.errors import PlanError

if TYPE_CHECKING:
    from ullage.act.techniques.applying.target import Target

Value = bool | int | float | str


class Semantics(StrEnum):
    """How a technique affects the results of the training."""

    SAME = "same"  # the same mathematics, operation by operation or up to the order of a sum
    ROUNDING = "rounding"  # the same training in other precisions
    TRAINING = "training"  # another training: other batches, lengths, parameters


class Place(StrEnum):
    """The place where a technique is applied."""

    MODULES = "modules"  # those that an action names
    OPTIMIZER = "optimizer"
    PROGRAM = "program"  # the whole program, some before its first line
    RANKS = "ranks"  # how the ranks of a job share the training


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a technique: its default, its meaning and its valid values.

    Attributes:
        default: the value when an action does not set it; its type is the type of the setting.
        what: its meaning, with its unit.
        choices: the valid values; empty: every value of the type.
        least: the smallest valid number; None for other types.
        read: raises PlanError for an invalid string.
    """

    default: Value
    what: str
    choices: tuple[Value, ...] = ()
    least: int | None = None
    read: Callable[[str], object] | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """The use of one technique in a plan: on which modules, with which settings.

    Attributes:
        technique: the name of the technique.
        modules: paths as in `named_modules()`, without the parts that wrappers add; empty for
            techniques that are not applied to modules.
        settings: the values that differ from the defaults.
    """

    technique: str
    modules: tuple[str, ...] = ()
    settings: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Technique:
    """A way to take less memory.

    Attributes:
        name: the name in plans, such as "checkpoint".
        does: what it does, as a verb phrase for people.
        precondition: what must be true of a program so that `semantics` holds.
        proof: how the precondition is checked on a program. If it does not hold, a PlanError says
            so, from `apply` or while the program runs; `ullage fit` then leaves the technique out.
        semantics: how it affects the results of the training.
        place: what it is applied to.
        reference: the address of a description.
        apply: applies an action to a target, and records in `target.changes` how to undo it; None
            if the environment variables do everything.
        variables: the environment variables that an action sets before the program starts.
        start: called with torch in the process of a script, before the first line of the script.
        on_move: applies an action when a script moves its model to its device, and moves the model
            itself; `apply` is called later, when the action is already applied.
        settings: by name.
        needs: requirements such as "torch>=2.13" or "torchao".
        excludes: techniques that cannot be in the same plan; two techniques for modules exclude
            each other only on the same module.
        variants: settings that the search tries besides the defaults.
        reorders: whether sums are taken in another order: equal up to rounding, not bit for bit.
        needs_ranks: whether it is only for jobs of several ranks.
        names_modules: for techniques of ranks: whether an action may name modules.
        is_for_chains: for techniques of modules: whether it applies to containers that call their
            modules one after another, and not to the modules themselves.
    """

    name: str
    does: str
    semantics: Semantics
    place: Place
    reference: str
    apply: Callable[[Target, Action], None] | None = None
    variables: Callable[[Action], Mapping[str, str]] | None = None
    start: Callable[[ModuleType], None] | None = None
    on_move: Callable[[Target, Action], None] | None = None
    settings: Mapping[str, Setting] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    precondition: str = ""
    proof: str = ""
    excludes: tuple[str, ...] = ()
    variants: tuple[Mapping[str, Value], ...] = ()
    reorders: bool = False
    needs_ranks: bool = False
    names_modules: bool = False
    is_for_chains: bool = False

    def check(self, action: Action) -> None:
        """Raises PlanError if an action names modules or settings that do not exist here."""
        is_of_modules = self.place is Place.MODULES
        if is_of_modules != bool(action.modules) and not (action.modules and self.names_modules):
            rule = "needs module paths" if is_of_modules else "takes no module paths"
            raise PlanError(f"{self.name!r} {rule}; the action has {action.modules!r}")
        for name, value in action.settings.items():
            setting = self.settings.get(name)
            if setting is None:
                known = ", ".join(self.settings) or "none"
                raise PlanError(f"{self.name!r} has no setting {name!r}; there are: {known}")
            _check_value(f"{self.name}.{name}", setting, value)

    def refuse(self, why: str) -> NoReturn:
        """Raises a PlanError: the technique does not work with this program."""
        raise PlanError(f"{self.name!r} does not go with this program: {why}")

    def value_of(self, action: Action, name: str) -> Value:
        """The value of a setting in an action, or its default."""
        return action.settings.get(name, self.settings[name].default)


def _check_value(name: str, setting: Setting, value: Value) -> None:
    if type(value) is not type(setting.default):
        expected = type(setting.default).__name__
        raise PlanError(f"{name} is {value!r}; expected {expected}")
    if setting.choices and value not in setting.choices:
        choices = ", ".join(map(str, setting.choices))
        raise PlanError(f"{name} is {value!r}; expected one of: {choices}")
    if setting.least is not None and isinstance(value, int | float) and value < setting.least:
        raise PlanError(f"{name} is {value!r}; expected {setting.least} or more")
    if setting.read is not None:
        setting.read(str(value))
