"""What a technique is: its name, what it changes of the training, and how it is applied.

One file each holds a technique and the code that applies it; torch is imported there when it is
applied, not before. catalog.py lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

from ullage.errors import PlanError

if TYPE_CHECKING:
    from ullage.techniques.applying.target import Target

Value = bool | int | float | str


class Semantics(StrEnum):
    """What a technique changes of what is computed."""

    SAME = "same"  # the same mathematics, operation by operation or up to the order of a sum
    ROUNDING = "rounding"  # the same training in other precisions
    TRAINING = "training"  # another training: other batches, lengths, parameters


class Place(StrEnum):
    """What a technique is applied to."""

    MODULES = "modules"  # those that an action names
    OPTIMIZER = "optimizer"
    PROGRAM = "program"  # the whole program, some before its first line
    RANKS = "ranks"  # how the ranks of a job share the training


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a technique: what it may be, and what it is unless an action says otherwise.

    Attributes:
        default: used where an action does not name it; its type is the setting's.
        what: what it means, with its unit.
        choices: the only values there are; empty: any of the type.
        least: the least number; None for what is no number.
        read: raises PlanError for a text that it cannot be.
    """

    default: Value
    what: str
    choices: tuple[Value, ...] = ()
    least: int | None = None
    read: Callable[[str], object] | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """One technique, applied: to which modules, with which settings.

    Attributes:
        technique: its name.
        modules: paths as `named_modules()` has them, without the parts that wrappers add; empty for
            techniques that are not applied to modules.
        settings: those that differ from their defaults.
    """

    technique: str
    modules: tuple[str, ...] = ()
    settings: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Technique:
    """A way to take less memory.

    Attributes:
        name: as plans have it, such as "checkpoint".
        does: what it does, in a sentence for people.
        precondition: what must hold of a program for it to be what it says, by its semantics.
        proof: how that is established on the program at hand. What is not is refused, by `apply`
            or while the program runs, with a PlanError; `ullage fit` leaves it out then.
        semantics: what it changes of what is computed.
        place: what it is applied to.
        reference: where it is described: an address.
        apply: applies an action to a target, and notes in the target how it is undone; None where
            all is done by `variables`.
        variables: what an action sets in the environment before the program starts.
        start: called with torch in a script's process, before the script's first line.
        on_move: applies an action as soon as a script moves its model to its device, and takes the
            model there; `apply` comes later, and finds it done.
        settings: by name.
        needs: requirements such as "torch>=2.13" or "torchao".
        excludes: techniques that do not go with it in one plan; of those that are applied to
            modules, on the same module.
        variants: settings that are worth trying beside the defaults.
        reorders: whether sums are taken in another order: equal up to rounding, not bit for bit.
        needs_ranks: whether it is for jobs of several ranks alone.
        names_modules: of techniques for ranks: whether an action may name modules.
        is_for_chains: of techniques for modules: for those that call others one after another, and
            not for each of these.
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
        """Raises PlanError where an action names modules or settings that this has not."""
        is_of_modules = self.place is Place.MODULES
        if is_of_modules != bool(action.modules) and not (action.modules and self.names_modules):
            wants = "names" if self.place is Place.MODULES else "is applied to no"
            raise PlanError(f"{self.name!r} {wants} modules; the action has {action.modules!r}")
        for name, value in action.settings.items():
            setting = self.settings.get(name)
            if setting is None:
                known = ", ".join(self.settings) or "none"
                raise PlanError(f"{self.name!r} has no setting {name!r}; there are: {known}")
            _check_value(f"{self.name}.{name}", setting, value)

    def refuse(self, why: str) -> NoReturn:
        """Raises the PlanError of a program that this does not go with."""
        raise PlanError(f"{self.name!r} does not go with this program: {why}")

    def value_of(self, action: Action, name: str) -> Value:
        """A setting of an action, or its default."""
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
