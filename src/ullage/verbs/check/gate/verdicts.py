"""The result of a check: the comparisons of every case, and the one exit code.

judged = judge(result, lock.scenarios)
exit_code_of([judged, ...])
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from ullage.explain.verdict import ExitCode, Verdict
from ullage.ground.protocol.plain import As, Mark, Only, figure
from ullage.verbs.check.gate.compare import Comparison, compare
from ullage.verbs.check.gate.figures import Measured
from ullage.verbs.check.gate.lock import Entry
from ullage.verbs.check.gate.matching import is_of
from ullage.verbs.check.gate.scenario import Scenario

if TYPE_CHECKING:
    from ullage.explain.run import RunReport
    from ullage.verbs.check.gate.cases import CaseResult


class State(enum.Enum):
    """The outcome of a case; the gravest decides."""

    PASSED = "passed"
    UNLOCKED = "not locked"
    EXCEEDED = "exceeded"
    OUT_OF_MEMORY = "out of memory"
    FAILED = "failed"

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a check of this case alone."""
        if self is State.FAILED:
            return ExitCode.PROGRAM_FAILED
        is_fine = self in {State.PASSED, State.UNLOCKED}
        return ExitCode.FINE if is_fine else ExitCode.ANSWER_IS_NO

    @property
    def is_lockable(self) -> bool:
        """True if the run ended normally, so that its figures can be locked."""
        return self not in {State.FAILED, State.OUT_OF_MEMORY}


@dataclass(frozen=True, slots=True)
class Judged:
    """A case with its verdict.

    Attributes:
        name: of the case.
        scenario: it is one of.
        state: its outcome.
        reason: why it failed or ran out of memory; empty otherwise.
        comparisons: one for each device that was used.
        measured: the same devices, with the lines of each place.
        missing: entries of the lock that no device stands for any more.
        warnings: of the run.
        output: the last lines of a program that failed.
        wall_s: how long the run took, now or when it was cached.
        is_kept: whether the result is from the cache.
    """

    name: str
    scenario: Annotated[Scenario, Only("name")]
    state: State
    reason: str
    comparisons: Annotated[tuple[Comparison, ...], Mark.NO_KEY]
    measured: Annotated[Mapping[str, Measured], Mark.NO_KEY]
    missing: tuple[str, ...]
    warnings: tuple[str, ...]
    output: str
    wall_s: float
    is_kept: Annotated[bool, As("is_cached")]

    @figure
    def line(self) -> int:
        """The line of its scenario in the configuration."""
        return self.scenario.line

    @figure
    def is_less(self) -> Annotated[bool, As("takes_less")]:
        """True if it passes, with less memory than was locked."""
        return self.state is State.PASSED and any(
            comparison.is_less for comparison in self.comparisons
        )


NO_DEVICE = "the program used no device memory"


def judge(result: CaseResult, locked: Mapping[str, Entry]) -> Judged:
    """The verdict on a finished case, beside every entry of the lock."""
    scenario, name, report = result.case.scenario, result.case.name, result.report
    measured = result.figures.measured
    figures = {entry_name(name, which): figure for which, figure in measured.items()}
    comparisons = tuple(
        compare(
            entry,
            figure.entry,
            locked.get(entry),
            budget=scenario.budget,
            tolerance=scenario.tolerance,
            total_bytes=result.total_bytes,
            serving=scenario.serving,
        )
        for entry, figure in figures.items()
    )
    state, reason = _find_state(report, comparisons)
    if result.problem:
        state, reason = State.FAILED, result.problem
    return Judged(
        name,
        scenario,
        state,
        reason,
        comparisons,
        figures,
        missing=tuple(entry for entry in locked if is_of(entry, name) and entry not in figures),
        warnings=result.figures.warnings,
        output=result.output,
        wall_s=result.figures.wall_s,
        is_kept=report is None and not result.problem,
    )


def entry_name(case: str, which: str) -> str:
    """The name of a device of a case in the lock: "train/rank=3", "train/batch=8,rank=3"."""
    if not which:
        return case
    return f"{case},{which}" if "/" in case else f"{case}/{which}"


def exit_code_of(judged: Sequence[Judged]) -> ExitCode:
    """The exit code of a check: a failed program is graver than an exceeded budget."""
    codes = {case.state.exit_code for case in judged}
    for code in (ExitCode.PROGRAM_FAILED, ExitCode.ANSWER_IS_NO):
        if code in codes:
            return code
    return ExitCode.FINE


def _find_state(report: RunReport | None, comparisons: Sequence[Comparison]) -> tuple[State, str]:
    if report is not None and report.verdict is Verdict.FAILED:
        return State.FAILED, report.reason
    if report is not None and report.verdict is Verdict.OUT_OF_MEMORY:
        return State.OUT_OF_MEMORY, f"does not fit on {report.gpu.slug}: {report.reason}"
    if not comparisons:  # a check of nothing must not pass
        return State.FAILED, NO_DEVICE
    if not all(comparison.is_kept for comparison in comparisons):
        return State.EXCEEDED, ""
    is_locked = all(comparison.locked is not None for comparison in comparisons)
    return (State.PASSED if is_locked else State.UNLOCKED), ""
