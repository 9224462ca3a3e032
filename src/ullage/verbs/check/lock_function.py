"""Writes the memory that scenarios need: what `ullage check --write` and `ullage.lock`
are.

locked = ullage.lock(["train"])
locked.exit_code
print(locked.text())
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ullage.answers.verb_answer import VerbAnswer
from ullage.ground.protocol.option import takes
from ullage.verbs.check.function import (
    find_cases,
    keep_snapshots,
    load_from,
    make_settings,
    open_cache,
)
from ullage.verbs.check.gate.cases import run_cases
from ullage.verbs.check.gate.config import Configuration
from ullage.verbs.check.gate.lock import Lock, read_lock
from ullage.verbs.check.gate.locking import LockReport, write_entries
from ullage.verbs.check.gate.matching import is_of
from ullage.verbs.check.gate.verdicts import judge
from ullage.verbs.check.options import CheckOptions

if TYPE_CHECKING:
    from ullage.answers.block_kinds import Blocks


@dataclass(frozen=True, slots=True)
class Locked(VerbAnswer):
    """A finished lock: what was run, and what became of the entries."""

    report: LockReport

    @property
    def exit_code(self) -> int:
        """The exit code of the command line: 0, 1 a case runs out of memory, 3 a program failed."""
        return int(self.report.exit_code)

    @property
    def document(self) -> dict[str, Any]:
        """The document, schema "ullage.lock/1"."""
        from ullage.verbs.check.document import lock_document

        return lock_document(self.report)

    def blocks(self, *, full: bool = False) -> Blocks:
        """The blocks of its report."""
        from ullage.verbs.check.text import locked_blocks

        return locked_blocks(self.report)


@takes(CheckOptions)
def lock(options: CheckOptions) -> Locked:
    """Writes the memory that scenarios need into the lock file.

    The entries of the scenarios that are named are written anew. Without names: what is locked
    already stays unchanged, what is missing is added, and entries of scenarios that are no longer
    in the configuration are removed.

    Raises:
        SpecError, EnvironmentProblem: as `check` does.
    """
    configuration = load_from(options.config)
    cases = find_cases(configuration, options.scenarios)
    renewed = {case.name for case in cases} if options.scenarios else set()
    store = open_cache(configuration)
    before = read_lock(configuration.lock_path)  # what is wrong with it is told before the runs
    with run_cases(cases, make_settings(store, options)) as results:
        judged = tuple(judge(result, before.scenarios) for result in results)
        keep_snapshots(judged, store)
    removed = () if options.scenarios else _gone(before, configuration)
    return Locked(write_entries(configuration.lock_path, judged, renewed, removed))


def _gone(lock: Lock, configuration: Configuration) -> tuple[str, ...]:
    names = [case.name for case in find_cases(configuration, ())]
    return tuple(entry for entry in lock.scenarios if not any(is_of(entry, name) for name in names))
