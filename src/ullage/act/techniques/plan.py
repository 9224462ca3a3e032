"""A plan: which techniques are applied to which modules of which program, stored in a file.

    plan = ullage.Plan.load("plan.json")
    model, optimizer = plan.apply(model, optimizer)

`ullage run --plan` and `ullage exec --plan` apply the same file to an unchanged script. A plan is
for one program. If the modules, the optimizer or the version of torch differ from that program, the
whole plan is refused.
"""

from __future__ import annotations

import itertools
import json
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ullage.act.techniques.applying.apply import applied_actions, apply_actions
from ullage.act.techniques.catalog import TECHNIQUES
from ullage.act.techniques.made_for import MadeFor
from ullage.act.techniques.technique import Action, Place
from ullage.ground.errors import PlanError
from ullage.ground.files import check_writable, write_text
from ullage.ground.parsing import parse_json, read_bounded
from ullage.ground.protocol.plain import STRICT_JSON, Misfit, document_of, figure
from ullage.ground.version import __version__


@dataclass(frozen=True, slots=True)
class Foreseen:
    """The memory that a plan took on the phantom, and its expected cost.

    Attributes:
        gpu: a slug of the catalogue.
        budget_bytes: the memory of the device that the plan had to fit.
        peak_used_bytes: the peak of the device, as `ullage run` reports it.
        peak_allocated_bytes: the peak of the allocator.
        step_s: seconds of a step, by the clock; 0: not known.
        host_bytes: pinned host memory that it needs.
        num_gpus: GPUs of one machine that share the training, one rank on each.
        replayed: which actions were replayed with real numbers, and which were not, for people;
            empty if none was.
    """

    gpu: str
    budget_bytes: int
    peak_used_bytes: int
    peak_allocated_bytes: int
    step_s: float
    host_bytes: int = 0
    num_gpus: int = 1
    replayed: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """Techniques for one program.

    Attributes:
        actions: in the order in which they are applied; empty: the unchanged program.
        made_for: the program.
        foreseen: memory and cost when the plan was made; None for a plan written by hand.
    """

    SCHEMA: ClassVar[str] = "ullage.plan/1"

    actions: tuple[Action, ...]
    made_for: MadeFor
    foreseen: Foreseen | None = None

    def __post_init__(self) -> None:
        for action in self.actions:
            technique = TECHNIQUES.get(action.technique)
            if technique is None:
                raise PlanError(
                    f"there is no technique {action.technique!r}; there are: "
                    f"{', '.join(sorted(TECHNIQUES))}"
                )
            technique.check(action)
        for action, other in itertools.combinations(self.actions, 2):
            _check_pair(action, other)

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that must be set before the program starts."""
        variables: dict[str, str] = {}
        for action in self.actions:
            variables_of = TECHNIQUES[action.technique].variables
            if variables_of is not None:
                variables |= variables_of(action)
        return variables

    @property
    def summary(self) -> str:
        """The actions in a line: "checkpoint (12 modules), foreach"."""
        texts = [
            f"{action.technique} ({len(action.modules)} modules)"
            if action.modules
            else action.technique
            for action in self.actions
        ]
        return ", ".join(texts) or "the unchanged program"

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """The plan in a file.

        Raises:
            PlanError: the file cannot be read, is not a plan, or has an unknown field or technique.
        """
        try:
            text = read_bounded(Path(path))
        except (OSError, ValueError) as error:
            raise PlanError(f"the plan {str(path)!r} cannot be read: {error}") from None
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, name: str = "the plan") -> Plan:
        """The plan in a string. `name` stands for it in errors, which are those of `load`."""
        try:
            document = parse_json(text)
        except ValueError as error:
            raise PlanError(f"{name} is not a plan: {error}; create it with `ullage fit`") from None
        return cls.restore(document, name)

    @classmethod
    def restore(cls, document: object, name: str = "the plan") -> Plan:
        """The plan in a document; as `parse`."""
        schema = document.get("schema") if isinstance(document, dict) else cls.SCHEMA
        if schema != cls.SCHEMA:
            raise PlanError(
                f"{name}: its schema is {schema!r}; this ullage {__version__} reads {cls.SCHEMA!r}"
            )
        if isinstance(document, dict):
            document = {key: document[key] for key in document if key not in {"schema", "ullage"}}
        try:
            return STRICT_JSON.read(cls, document)
        except Misfit as misfit:
            raise PlanError(f"{misfit.of_file(name)}; create it with `ullage fit`") from None
        except PlanError as error:
            raise PlanError(f"{name}: {error}") from None

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Writes the plan as JSON.

        Raises:
            SpecError: the file exists and `force` is not set, or it cannot be written.
        """
        target = Path(path)
        check_writable(target, force=force)
        write_text(self.text(), target, force=force)

    def text(self) -> str:
        """The plan as JSON, always in the same order."""
        return json.dumps(self.document, indent=1) + "\n"

    @property
    def document(self) -> dict[str, Any]:
        """The plan document, schema "ullage.plan/1"."""
        return document_of(self)

    @figure
    def ullage(self) -> str:
        """The version that writes it."""
        return __version__

    def apply(self, model: Any, optimizer: Any = None) -> tuple[Any, Any]:
        """Applies the plan to a model and its optimizer, for as long as they live.

        Args:
            model: an `nn.Module`.
            optimizer: a `torch.optim.Optimizer`, a list of several, or None if there is none.

        Returns:
            the same model and optimizer.

        Raises:
            PlanError: the plan was made for another program, needs a package that is not
                installed, or a plan is already applied; nothing is changed in these cases.
        """
        apply_actions(self.actions, self.made_for, model, optimizer)
        return model, optimizer

    def applied(self, model: Any, optimizer: Any = None) -> AbstractContextManager[tuple[Any, Any]]:
        """Applies the plan while a context lasts, and undoes it at the end, also after an error.

            with plan.applied(model, optimizer):
                ...

        Args and errors are those of `apply`.
        """
        return applied_actions(self.actions, self.made_for, model, optimizer)


def _check_pair(action: Action, other: Action) -> None:
    """Raises PlanError if two actions cannot be in the same plan."""
    first, second = TECHNIQUES[action.technique], TECHNIQUES[other.technique]
    if first is not second and not (second.name in first.excludes or first.name in second.excludes):
        return
    shared = sorted(set(action.modules) & set(other.modules))
    if first.place is second.place is Place.MODULES and not shared:
        return
    where = f" on {shared[0]}" if shared else ""
    if first is second:
        raise PlanError(f"{first.name!r} is in the plan twice{where}; keep one of them")
    raise PlanError(
        f"{first.name!r} and {second.name!r} do not go together{where}; remove one of them"
    )
