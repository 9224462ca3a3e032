"""The record of an answer: memory of one or several places, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ullage.estimate.term import Parts, Term, Verdict


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

    kind: str
    subject: str
    gpu: str | None
    places: tuple[Place, ...]
    figures: tuple[tuple[str, int, str], ...]
    assumptions: tuple[str, ...]

    @property
    def verdict(self) -> Verdict | None:
        """The worst of the places' verdicts; None: no size is given."""
        return judge([place.verdict for place in self.places])


_ORDER = (Verdict.DOES_NOT_FIT, Verdict.MAY_FIT, Verdict.FITS)


def judge(verdicts: Sequence[Verdict | None]) -> Verdict | None:
    """The worst verdict; None where there is none."""
    return next((verdict for verdict in _ORDER if verdict in verdicts), None)
