"""A ladder: the plans that a guard may go to, each proved on the phantom up to a size of the batch.

    ladder = LadderFile.load("ladder.json")
    ladder.rungs[1].plan, ladder.rungs[1].proved_to

`ullage fit --ladder` writes the file, and `ullage.guard(plans="ladder.json")` reads it. Proved
means run: no size between two that were run is called proved.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from ullage.act.techniques.plan import Plan
from ullage.ground.errors import PlanError
from ullage.ground.files import check_writable, write_text
from ullage.ground.parsing import parse_json, read_bounded
from ullage.ground.protocol.plain import JSON, From, Misfit, document_of, figure
from ullage.ground.version import __version__

_SCHEMA: Final = "ullage.find_ladder/1"
# What a guard can put on and take off between two steps: bit for bit the same numbers, and
# parameters and the optimizer stay where they are.
RUNGS: Final = (
    "checkpoint", "checkpoint_segments", "selective_checkpoint", "offload_activations",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Proof:
    """A run of a rung on the phantom.

    Attributes:
        size: of the batch, or of what else was varied.
        fits: whether it ended without an error, within the budget.
        reserved_bytes: the peak that the allocator reserved.
        used_bytes: the peak of the device, with the context.
        host_bytes: the peak of pinned host memory.
        step_s: seconds of a step by the clock; 0: it was not timed.
    """

    size: int
    fits: bool
    reserved_bytes: int
    used_bytes: int
    host_bytes: int
    step_s: float


def _read_plan(document: object) -> Plan | None:
    return None if document is None else Plan.restore(document, "a rung")


@dataclass(frozen=True, slots=True)
class ProvedRung:
    """A plan, and its runs.

    Attributes:
        plan: None: the unchanged program.
        proofs: the smallest size first.
    """

    plan: Annotated[Plan | None, From(object), _read_plan]
    proofs: tuple[Proof, ...]

    @property
    def proof(self) -> Proof | None:
        """The run of the largest size up to which all that were run fit; None: the smallest does
        not.
        """
        last = None
        for proof in self.proofs:
            if not proof.fits:
                break
            last = proof
        return last

    @figure
    def proved_to(self) -> int:
        """The largest size up to which all that were run fit; 0: none does."""
        return 0 if self.proof is None else self.proof.size


@dataclass(frozen=True, slots=True)
class LadderFile:
    """The rungs of a program on a GPU.

    Attributes:
        torch: the version of torch.
        gpu: a slug of the catalogue.
        total_bytes: the memory of that GPU.
        budget_bytes: what a rung may use of it.
        program: its words, with {variable} for the size.
        variable: what was varied, such as "length".
        rungs: the fastest first; the first is the unchanged program.
    """

    SCHEMA: ClassVar[str] = _SCHEMA

    torch: str
    gpu: str
    total_bytes: int
    budget_bytes: int
    program: tuple[str, ...]
    variable: str
    rungs: tuple[ProvedRung, ...]

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of the rungs after the first."""
        return tuple(rung.plan for rung in self.rungs if rung.plan is not None)

    @property
    def document(self) -> dict[str, Any]:
        """The document, schema "ullage.find_ladder/1"."""
        return document_of(self)

    @figure
    def ullage(self) -> str:
        """The version that writes it."""
        return __version__

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Writes the ladder as JSON.

        Raises:
            SpecError: the file exists and `force` is not set, or it cannot be written.
        """
        target = Path(path)
        check_writable(target, force=force)
        write_text(json.dumps(self.document, indent=1) + "\n", target, force=force)

    @classmethod
    def load(cls, path: str | Path) -> LadderFile:
        """The ladder in a file.

        Raises:
            PlanError: the file cannot be read, or is not a ladder.
        """
        try:
            document = parse_json(read_bounded(Path(path)))
        except (OSError, ValueError) as error:
            raise PlanError(f"the ladder {str(path)!r} cannot be read: {error}") from None
        try:
            return _read(document)
        except PlanError as error:
            raise PlanError(f"{path}: {error}") from None


def _read(document: Any) -> LadderFile:
    schema = document.get("schema") if isinstance(document, dict) else _SCHEMA
    if schema == "ullage.plan/1":
        raise PlanError('it is one plan, not a ladder; pass it in a list: plans=["plan.json"]')
    if schema != _SCHEMA:
        raise PlanError(
            f"its schema is {schema!r}; this ullage {__version__} reads {_SCHEMA!r}; make it "
            "again with `ullage fit --ladder`"
        )
    try:
        ladder = JSON.read(LadderFile, document)
    except Misfit as misfit:
        raise PlanError(f"{misfit.say('the ladder')}; make it again") from None
    rungs = ladder.rungs
    if not rungs or rungs[0].plan is not None or any(rung.plan is None for rung in rungs[1:]):
        raise PlanError("its first rung, and only that, is the unchanged program: plan null")
    for rung, fields in zip(rungs, document["rungs"], strict=True):
        if [proof.size for proof in rung.proofs] != sorted({proof.size for proof in rung.proofs}):
            raise PlanError("the proofs of a rung are not in the order of their sizes")
        said = fields.get("proved_to")
        if said != rung.proved_to:
            raise PlanError(f"a rung says proved_to {said}, and its proofs go to {rung.proved_to}")
    return ladder


def is_ladder(path: Path) -> bool:
    """True if a file says that it is a ladder, of whatever version."""
    try:
        document = parse_json(read_bounded(path))
    except (OSError, ValueError):
        return False
    schema = document.get("schema") if isinstance(document, dict) else None
    return isinstance(schema, str) and schema.partition("/")[0] == _SCHEMA.partition("/")[0]
