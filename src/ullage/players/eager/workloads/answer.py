"""The record of an answer: memory of one or several places, part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from ullage.ground.protocol.plain import As, Mark, figure
from ullage.players.eager.term import ESTIMATE_SCHEMA, Parts, Term, Verdict


@dataclass(frozen=True, slots=True)
class Place(Parts):
    """Memory of one kind, and what lies in it.

    Attributes:
        name: such as "GPU", "host" or "NVMe".
        capacity_bytes: its size; None: not given.
        terms: the parts.
    """

    name: str
    capacity_bytes: int | None
    terms: tuple[Term, ...]

    @figure
    def sizes(self) -> Annotated[Mapping[str, int], Mark.FLAT]:
        """The bytes, with their bounds."""
        low_bytes, high_bytes = self.low_bytes, self.high_bytes
        return {"low_bytes": low_bytes, "bytes": self.bytes, "high_bytes": high_bytes}


@dataclass(frozen=True, slots=True)
class WorkloadEstimate:
    """The memory of a workload.

    Attributes:
        kind: "speech", "diffusion" or "index".
        subject: the model, or the index, in a line.
        gpu: the catalogue's name of the GPU; None: none was given.
        places: where the memory is.
        figures: other numbers, each a label, a number and its unit ("bytes" or a noun).
        assumptions: what the estimate assumes, each a sentence.
    """

    SCHEMA: ClassVar[str] = ESTIMATE_SCHEMA

    kind: str
    subject: str
    gpu: str | None
    places: tuple[Place, ...]
    figures: Annotated[tuple[tuple[str, int, str], ...], Mark.NO_KEY]
    assumptions: tuple[str, ...]

    @figure
    def figure_rows(self) -> Annotated[Sequence[Mapping[str, Any]], As("figures")]:
        """The other numbers."""
        return [dict(zip(("name", "value", "unit"), row, strict=True)) for row in self.figures]

    @figure
    def verdict(self) -> Verdict | None:
        """The worst of the places' verdicts; None: no size is given."""
        return judge([place.verdict for place in self.places])


_ORDER = (Verdict.DOES_NOT_FIT, Verdict.MAY_FIT, Verdict.FITS)


def judge(verdicts: Sequence[Verdict | None]) -> Verdict | None:
    """The worst verdict; None where there is none."""
    return next((verdict for verdict in _ORDER if verdict in verdicts), None)
