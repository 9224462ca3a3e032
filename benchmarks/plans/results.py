"""What was found for a workload, as it is kept: benchmarks/plans/results/NAME.json."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.plans.brute import Contest
from benchmarks.plans.workloads import WORKLOADS

DIRECTORY = Path(__file__).with_name("results")


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found for one budget.

    Attributes:
        budget_bytes: of the device.
        plan: in words; None: none that was tried fits.
        step_s: by the clock.
        used_bytes: of the plan read from its file and run afresh; None: it did not run through.
        gap: to the fastest mixture that needs as little, by the model, as a share of the step.
        gap_at_budget: to the fastest that is expected to fit the budget.
        contest: with the plans people would write by hand; None: not held.
    """

    budget_bytes: int
    plan: str | None
    step_s: float
    used_bytes: int | None
    gap: float
    gap_at_budget: float
    contest: Contest | None

    @property
    def fits(self) -> bool:
        """Whether the plan, run afresh, kept to the budget."""
        return self.used_bytes is not None and self.used_bytes <= self.budget_bytes

    @property
    def used_frac(self) -> float:
        """The part of the budget that is used."""
        return (self.used_bytes or 0) / self.budget_bytes


@dataclass(frozen=True, slots=True)
class Result:
    """One workload: the program as it is, and the answers, that for the largest budget first.

    Attributes:
        name: of the workload.
        date: of the search.
        ullage, torch: versions.
        machine: what the search ran on.
        as_it_is_bytes, as_it_is_s: the program without a plan.
        fastest_s: a step under the fastest plan, whatever it takes.
        blocks: how many there are of each kind, in words.
        num_runs, wall_s: of the search for all budgets.
        num_brute_runs, brute_s: of the contests.
        answers: one for each budget.
    """

    name: str
    date: str
    ullage: str
    torch: str
    machine: str
    as_it_is_bytes: int
    as_it_is_s: float
    fastest_s: float
    blocks: str
    num_runs: int
    wall_s: float
    num_brute_runs: int
    brute_s: float
    answers: tuple[Answer, ...]


def save(result: Result) -> None:
    """Writes a result in place of an earlier one."""
    DIRECTORY.mkdir(exist_ok=True)
    text = json.dumps(asdict(result), indent=1) + "\n"
    _path(result.name).write_text(text, encoding="utf-8")


def saved() -> Iterator[Result]:
    """The results that there are, in the order of the workloads."""
    for name in WORKLOADS:
        if _path(name).exists():
            held = json.loads(_path(name).read_text(encoding="utf-8"))
            yield Result(**held | {"answers": tuple(_answer(**one) for one in held["answers"])})


def _answer(*, contest: dict[str, object] | None, **held: object) -> Answer:
    return Answer(**held, contest=None if contest is None else Contest(**contest))  # type: ignore[arg-type]


def _path(name: str) -> Path:
    return DIRECTORY / f"{name}.json"
