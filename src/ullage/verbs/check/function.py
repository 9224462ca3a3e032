"""Checks scenarios against their lock and budget: what `ullage check` and `ullage.check` are.

check = ullage.check()                      # of the ullage.toml here, or above
check.exit_code, check.judged[0].state
print(check.text())
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ullage.answers.verb_answer import VerbAnswer
from ullage.ground.protocol.option import takes
from ullage.verbs.check.gate.cache import CACHE_NAME, Cache
from ullage.verbs.check.gate.cases import Settings, run_cases
from ullage.verbs.check.gate.config import Configuration, load_configuration
from ullage.verbs.check.gate.lock import read_lock
from ullage.verbs.check.gate.matching import select
from ullage.verbs.check.gate.scenario import Case, expand
from ullage.verbs.check.gate.verdicts import Judged, State, exit_code_of, judge
from ullage.verbs.check.options import CheckOptions

if TYPE_CHECKING:
    from ullage.answers.block_kinds import Blocks
    from ullage.verbs.diff.function import Diff
    from ullage.verbs.views.views import CheckView


@dataclass(frozen=True, slots=True)
class Check(VerbAnswer):
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
        """The exit code of the command line: 0 all is kept, 1 something is exceeded, 3 a program
        failed.
        """
        return int(exit_code_of(self.judged))

    @property
    def view(self) -> CheckView:
        """The blocks that every report shows."""
        from ullage.verbs.views.views import CheckView

        reports = {name: diff.report for name, diff in self.diffs.items()}
        return CheckView(self.configuration.path, self.judged, reports)

    @property
    def document(self) -> dict[str, Any]:
        """The document, schema "ullage.check/1"."""
        from ullage.verbs.check.document import check_document

        return check_document(self.view)

    def blocks(self, *, full: bool = False) -> Blocks:
        """The blocks of its report."""
        from ullage.verbs.check.text import check_blocks

        return check_blocks(self.view)


@takes(CheckOptions)
def check(options: CheckOptions) -> Check:
    """Runs scenarios and checks their memory against their lock and budget.

    Raises:
        SpecError: the configuration or the lock is wrong, or there is no such scenario.
        EnvironmentProblem: no torch for CUDA there, or one that this ullage does not know.
    """
    configuration = load_from(options.config)
    cases = find_cases(configuration, options.scenarios)
    lock = read_lock(configuration.lock_path)
    store = open_cache(configuration)
    with run_cases(cases, make_settings(store, options)) as results:
        judged = tuple(judge(result, lock.scenarios) for result in results)
        diffs, html = _compare_runs(judged, store, has_pages=options.pages)
        if not options.no_cache:
            keep_snapshots(judged, store)
    return Check(configuration, judged, diffs, html)


def load_from(config: str | os.PathLike[str] | None) -> Configuration:
    """The configuration of a file, or that of the current directory or above."""
    return load_configuration(Path.cwd(), None if config is None else Path(config))


def find_cases(configuration: Configuration, patterns: Sequence[str]) -> list[Case]:
    """The cases of the named scenarios; no names: of all."""
    cases = {
        case.name: case
        for scenario in configuration.scenarios.values()
        for case in expand(scenario)
    }
    names = select(list(cases), patterns) if patterns else tuple(cases)
    return [cases[name] for name in names]


def open_cache(configuration: Configuration) -> Cache:
    """The cache beside the configuration."""
    return Cache(configuration.path.with_name(CACHE_NAME))


def make_settings(cache: Cache, options: CheckOptions) -> Settings:
    """How the cases are run."""
    interpreter = None if options.python is None else os.fspath(options.python)
    if interpreter is not None and os.sep in interpreter:
        interpreter = str(Path(interpreter).expanduser().absolute())
    store = None if options.no_cache else cache
    return Settings(interpreter, store, options.on_progress, options.on_failure)


def keep_snapshots(judged: Sequence[Judged], cache: Cache) -> None:
    """Keeps the snapshots of successful runs, so that later runs can be compared with them."""
    for case in judged:
        for measured in case.measured.values():
            if case.state.is_lockable and measured.snapshot is not None:
                cache.keep_snapshot(measured.entry, measured.snapshot)


def _compare_runs(
    judged: Sequence[Judged], cache: Cache, *, has_pages: bool
) -> tuple[dict[str, Diff], dict[str, str]]:
    """The diffs and pages of the entries that changed, where both snapshots are kept."""
    from ullage.verbs.diff.function import diff
    from ullage.verbs.explain.function import explain_file

    diffs: dict[str, Diff] = {}
    pages: dict[str, str] = {}
    for case in judged:
        for comparison in case.comparisons:
            if (
                comparison.is_kept
                and not comparison.is_less
                and case.state is not State.OUT_OF_MEMORY
            ):
                continue
            name, measured = comparison.name, case.measured[comparison.name]
            now = measured.snapshot or cache.snapshot_of(measured.entry)
            was = None if comparison.locked is None else cache.snapshot_of(comparison.locked)
            if now is not None and was is not None:
                diffs[name] = diff(was, now)
            if has_pages and now is not None:
                pages[name] = diffs[name].html if name in diffs else explain_file(now).html
    return diffs, pages
