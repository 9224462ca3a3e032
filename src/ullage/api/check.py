"""Checks scenarios against their lock and budget, and locks them: what `ullage check` and `ullage
lock` are.

    check = ullage.check()                      # of the ullage.toml here, or above
    check.exit_code, check.judged[0].state
    print(check.text())
    ullage.lock(update=["train"])
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ullage.gate.cache import CACHE_NAME, Cache
from ullage.gate.cases import CaseResult, Settings, run_cases
from ullage.gate.config import Configuration, load_configuration
from ullage.gate.lock import Lock, read_lock
from ullage.gate.locking import LockReport, write_entries
from ullage.gate.matching import is_of, select
from ullage.gate.scenario import Case, expand
from ullage.gate.verdicts import Judged, State, exit_code_of, judge

if TYPE_CHECKING:
    from ullage.api.diff import Diff
    from ullage.report.check import CheckView


@dataclass(frozen=True, slots=True)
class Check:
    """A finished check.

    Attributes:
        configuration: whose scenarios they are.
        judged: each case, in the order of the configuration.
        diffs: by the name of an entry, the run beside the run that was locked, where something
            changed and both are here.
        pages: by the name of an entry, a page to look at, where one was asked for.
    """

    configuration: Configuration
    judged: tuple[Judged, ...]
    diffs: Mapping[str, Diff]
    pages: Mapping[str, str]

    @property
    def exit_code(self) -> int:
        """What the command line exits with: 0 all is kept, 1 something is exceeded, 3 a program
        failed.
        """
        return int(exit_code_of(self.judged))

    @property
    def view(self) -> CheckView:
        """What every report shows."""
        from ullage.report.check import CheckView

        reports = {name: diff.report for name, diff in self.diffs.items()}
        return CheckView(self.configuration.path, self.judged, reports)

    @property
    def document(self) -> dict[str, Any]:
        """The document, schema "ullage.check/1"."""
        from ullage.report.check_document import check_document

        return check_document(self.view)

    def text(self, width: int = 80) -> str:
        """The report for people, without colour."""
        from ullage.report.check import render_check

        return render_check(self.view, width)


@dataclass(frozen=True, slots=True)
class Locked:
    """A finished lock: what was run, and what became of the entries."""

    report: LockReport

    @property
    def exit_code(self) -> int:
        """What the command line exits with: 0, 1 a case runs out of memory, 3 a program failed."""
        return int(self.report.exit_code)

    @property
    def document(self) -> dict[str, Any]:
        """The document, schema "ullage.lock/1"."""
        from ullage.report.lock import lock_document

        return lock_document(self.report)

    def text(self, width: int = 80) -> str:
        """The report for people, without colour."""
        from ullage.report.lock import render_locked

        return render_locked(self.report, width)


def check(
    scenarios: Sequence[str] = (),
    *,
    config: str | os.PathLike[str] | None = None,
    python: str | os.PathLike[str] | None = None,
    cached: bool = True,
    pages: bool = False,
    on_progress: Callable[[str], None] | None = None,
    on_failure: Callable[[str], None] | None = None,
) -> Check:
    """Runs scenarios and holds what they take against their lock and budget.

    Args:
        scenarios: names of scenarios or of cases, or patterns with *; none: all.
        config: the configuration file; None looks for it here and above.
        python: an interpreter instead of that of each scenario.
        cached: whether a result that is known, and whose inputs are what they were, is taken.
        pages: whether to make a page of each entry that changed.
        on_progress: called with a line, such as "3 of 8 runs", as runs end.
        on_failure: called with the last output of a program that failed.

    Raises:
        SpecError: the configuration or the lock is wrong, or there is no such scenario.
        EnvironmentProblem: no torch for CUDA there, or one that this ullage does not know.
    """
    configuration = _load(config)
    cases = _cases(configuration, scenarios)
    lock = read_lock(configuration.lock_path)
    store = _cache(configuration)
    settings = _settings(store if cached else None, python, on_progress, on_failure)
    with run_cases(cases, settings) as results:
        judged = tuple(_judge(result, lock) for result in results)
        diffs, drawn = _compare_runs(judged, store, has_pages=pages)
        if cached:
            _keep_snapshots(judged, store)
    return Check(configuration, judged, diffs, drawn)


def lock(
    scenarios: Sequence[str] = (),
    *,
    update: Sequence[str] = (),
    config: str | os.PathLike[str] | None = None,
    python: str | os.PathLike[str] | None = None,
    cached: bool = True,
    on_progress: Callable[[str], None] | None = None,
    on_failure: Callable[[str], None] | None = None,
) -> Locked:
    """Writes what scenarios take into the lock file.

    What is locked already stays as it is, unless `update` names it. Entries of scenarios that are
    no longer in the configuration are removed.

    Args:
        scenarios: names as for `check`; none: all, or those of `update` alone.
        update: names of what is to be written anew, even where it takes more.
        config, python, cached, on_progress, on_failure: as for `check`.

    Raises:
        SpecError, EnvironmentProblem: as `check` does.
    """
    configuration = _load(config)
    cases = _cases(configuration, (*scenarios, *update))
    renewed = set(select([case.name for case in cases], update)) if update else set()
    store = _cache(configuration)
    before = read_lock(configuration.lock_path)  # what is wrong with it is told before the runs
    settings = _settings(store if cached else None, python, on_progress, on_failure)
    with run_cases(cases, settings) as results:
        judged = tuple(_judge(result, before) for result in results)
        _keep_snapshots(judged, store)
    gone = _gone(before, configuration) if not scenarios and not update else ()
    return Locked(write_entries(configuration.lock_path, judged, renewed, gone))


def _gone(lock: Lock, configuration: Configuration) -> tuple[str, ...]:
    """The entries that no case of any scenario stands for."""
    names = [
        case.name for scenario in configuration.scenarios.values() for case in expand(scenario)
    ]
    return tuple(entry for entry in lock.scenarios if not any(is_of(entry, name) for name in names))


def _load(config: str | os.PathLike[str] | None) -> Configuration:
    return load_configuration(Path.cwd(), None if config is None else Path(config))


def _cases(configuration: Configuration, wanted: Sequence[str]) -> list[Case]:
    cases = {
        case.name: case
        for scenario in configuration.scenarios.values()
        for case in expand(scenario)
    }
    names = select(list(cases), wanted) if wanted else tuple(cases)
    return [cases[name] for name in names]


def _cache(configuration: Configuration) -> Cache:
    return Cache(configuration.path.with_name(CACHE_NAME))


def _settings(
    cache: Cache | None,
    python: str | os.PathLike[str] | None,
    on_progress: Callable[[str], None] | None,
    on_failure: Callable[[str], None] | None,
) -> Settings:
    interpreter = None if python is None else os.fspath(python)
    if interpreter is not None and os.sep in interpreter:
        interpreter = str(Path(interpreter).expanduser().absolute())
    return Settings(interpreter, cache, on_progress, on_failure)


def _judge(result: CaseResult, lock: Lock) -> Judged:
    case = result.case
    return judge(
        case.name,
        case.scenario,
        result.report,
        result.figures.measured,
        lock.scenarios,
        total_bytes=result.total_bytes,
        warnings=result.figures.warnings,
        output=result.output,
        wall_s=result.figures.wall_s,
    )


def _keep_snapshots(judged: Sequence[Judged], cache: Cache) -> None:
    """Those of runs that went through: any may be what the next one is compared with."""
    for one in judged:
        for measured in one.measured.values():
            if one.state.is_lockable and measured.snapshot is not None:
                cache.keep_snapshot(measured.entry, measured.snapshot)


def _compare_runs(
    judged: Sequence[Judged], cache: Cache, *, has_pages: bool
) -> tuple[dict[str, Diff], dict[str, str]]:
    """Each entry that is not what was locked, beside the run that was, as far as both are here."""
    from ullage.api.diff import diff
    from ullage.api.explain import explain_file

    diffs: dict[str, Diff] = {}
    drawn: dict[str, str] = {}
    for one in judged:
        for comparison in one.comparisons:
            if (
                comparison.is_kept
                and not comparison.is_less
                and one.state is not State.OUT_OF_MEMORY
            ):
                continue
            name, measured = comparison.name, one.measured[comparison.name]
            now = measured.snapshot or cache.snapshot_of(measured.entry)
            was = None if comparison.locked is None else cache.snapshot_of(comparison.locked)
            if now is not None and was is not None:
                diffs[name] = diff(was, now)
            if has_pages and now is not None:
                drawn[name] = diffs[name].html if name in diffs else explain_file(now).html
    return diffs, drawn


__all__ = ["Check", "Locked", "check", "lock"]
