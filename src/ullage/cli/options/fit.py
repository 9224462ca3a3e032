"""What `ullage fit` was given, one field for each of its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from ullage.cli.output import Output, named_fields
from ullage.errors import SpecError
from ullage.runs.job import ProgramOptions


class SearchOptions(TypedDict):
    """What every search of `ullage fit` is given: the GPU, and the interpreter of the program."""

    gpu: str | None
    memory: str | None
    capability: str | None
    budget: str | None
    python: str | None


@dataclass(frozen=True, slots=True)
class FitOptions:
    """The parameters of `ullage fit`, named as there."""

    program: tuple[str, ...]
    gpu: str | None
    memory: str | None
    capability: str | None
    budget: str | None
    allow: str
    objective: str
    price: float | None
    smallest_gpu: bool
    max_batch: bool
    largest: str | None
    multiple_of: int | None
    ladder: str | None
    gpus: int
    minutes: float | None
    executor: str | None
    alloc_conf: str | None
    steps: int | None
    python: str | None
    dummy_weights: bool
    assume: tuple[str, ...]
    measured: Path | None
    output: Path | None
    html: Path | None
    as_json: bool
    force: bool
    quiet: bool

    @property
    def target(self) -> Output:
        """How the result is shown; --output takes the plan, not the document."""
        return Output(is_json=self.as_json, is_quiet=self.quiet, path=None, force=self.force)

    @property
    def limit_s(self) -> float:
        """Seconds after which no more plans are tried."""
        from ullage.plan.budget import LIMIT_S

        return LIMIT_S if self.minutes is None else 60 * self.minutes

    def check_goes_with(self, what: str, *others: tuple[str, bool]) -> None:
        """Raises SpecError for an option of the search for the fastest plan, which does not go with
        what is asked for, or for one of the others: flags, and whether they are given.
        """
        for flag, is_given in (
            *others,
            ("--objective", self.objective != "time"),
            ("--price", self.price is not None),
            ("--smallest-gpu", self.smallest_gpu),
            ("--html", self.html is not None),
            ("--gpus", self.gpus != 1),
            ("--executor", self.executor is not None),
            ("--minutes", self.minutes is not None),
        ):
            if is_given:
                raise SpecError(f"{flag} does not go with {what}; leave it out")

    @property
    def of_search(self) -> SearchOptions:
        """The options that every search takes, as `ullage.fit` names them."""
        return named_fields(self, SearchOptions)

    @property
    def of_program(self) -> ProgramOptions:
        """The options that decide how the program runs, as `ullage.fit` names them."""
        return named_fields(self, ProgramOptions)
