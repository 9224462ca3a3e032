"""Writes the figures of cases into the lock file, and reports which entries changed.

report = write_entries(path, judged, renewed={"train"}, obsolete=())
report.written, report.left
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ullage.explain.verdict import ExitCode
from ullage.verbs.check.gate.lock import Entry, Lock, change_lock
from ullage.verbs.check.gate.verdicts import Judged, exit_code_of


@dataclass(frozen=True, slots=True)
class LockReport:
    """The changes to the entries of a lock file.

    Attributes:
        path: of the file.
        judged: the cases that were run, beside the lock as it was.
        written: names of entries that are new or were written anew.
        removed: names of entries that no scenario stands for any more.
        left: names of entries that are there already and differ from what was found.
    """

    path: Path
    judged: tuple[Judged, ...]
    written: tuple[str, ...]
    removed: tuple[str, ...]
    left: tuple[str, ...]

    @property
    def refused(self) -> tuple[Judged, ...]:
        """The cases that did not end normally, and whose entries are unchanged."""
        return tuple(case for case in self.judged if not case.state.is_lockable)

    @property
    def exit_code(self) -> ExitCode:
        """0, 1 where a case runs out of memory, 3 where a program failed."""
        return exit_code_of(self.refused)


def write_entries(
    path: Path, judged: Sequence[Judged], renewed: Collection[str], obsolete: Sequence[str]
) -> LockReport:
    """Writes an entry for each device of each case that ended normally.

    Args:
        path: of the lock file.
        judged: the cases.
        renewed: names of those whose entries are written anew; of others only what is missing.
        gone: names of entries that are to be removed.

    Raises:
        SpecError: the file cannot be read or written.
    """
    before: list[Lock] = []

    def change(lock: Lock) -> Lock:
        """Changes the lock as it is now: another process may have changed it since it was read."""
        before.append(lock)
        return lock.with_scenarios(dict.fromkeys(obsolete) | dict(_entries(lock, judged, renewed)))

    after = change_lock(path, change).scenarios
    known = before[0].scenarios
    entries = {comparison.name: comparison.entry for case in judged if case.state.is_lockable
             for comparison in case.comparisons}  # fmt: skip
    return LockReport(
        path=path,
        judged=tuple(judged),
        written=tuple(name for name, entry in after.items() if known.get(name) != entry),
        removed=tuple(name for name in known if name not in after),
        left=tuple(name for name, entry in entries.items() if after[name].peaks != entry.peaks),
    )


def _entries(
    lock: Lock, judged: Sequence[Judged], renewed: Collection[str]
) -> Iterator[tuple[str, Entry | None]]:
    """The changes; None removes an entry."""
    for case in judged:
        if not case.state.is_lockable:
            continue
        yield from ((name, None) for name in case.missing)
        for comparison in case.comparisons:
            if case.name in renewed or comparison.name not in lock.scenarios:
                yield comparison.name, comparison.entry
