"""A project with one scenario that is locked once, then changed and checked.

with Project(python) as project:
    project.check(edits=(("DIM = 512", "DIM = 528"),)).is_found
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import ullage
from benchmarks.gate.changes import Harmless, Planted
from benchmarks.gate.repetition import Repetition, repeat
from ullage.ground.units import MIB
from ullage.verbs.check.gate.compare import Changed

PROGRAM = Path(__file__).resolve().parents[2] / "tests" / "programs" / "gate" / "train.py"
GPU = "l4"


@dataclass(frozen=True, slots=True)
class Trial:
    """A check of a changed program.

    Attributes:
        state: what became of it.
        changed_bytes, changed_reserved_bytes: of the peaks, since it was locked.
        needed_bytes: the smallest change that must be found: 1 % of the peak, or 32 MiB.
        category, module: that grew most.
        reason: the first that is given.
    """

    state: str
    changed_bytes: int
    changed_reserved_bytes: int
    needed_bytes: int
    category: str
    module: str
    reason: str

    def names(self, change: Planted) -> bool:
        """Whether the right category and module are named."""
        return self.category in change.categories and self.module in change.modules


class Project:
    """A directory with a program, a configuration and its lock."""

    def __init__(self, python: Path) -> None:
        self._python = python
        self._own = tempfile.TemporaryDirectory(prefix="ullage-gate-")
        self._directory = Path(self._own.name)
        self._source = PROGRAM.read_text(encoding="utf-8")

    def __enter__(self) -> Project:
        self._write((), ())
        ullage.lock(config=self._config, python=self._python)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._own.cleanup()

    def plant(self, change: Planted) -> Trial:
        """A regression, checked."""
        return self.check(change.edits)

    def try_harmless(self, change: Harmless) -> Trial:
        """A harmless change, checked; with fewer processors where that is the change."""
        before = os.sched_getaffinity(0)
        if change.cpus:
            os.sched_setaffinity(0, sorted(before)[: change.cpus])
        try:
            return self.check(change.edits, change.env)
        finally:
            os.sched_setaffinity(0, before)

    def check(
        self, edits: Sequence[tuple[str, str]] = (), env: Sequence[tuple[str, str]] = ()
    ) -> Trial:
        """The program, changed and checked without a cache; the locked run is at hand."""
        self._write(edits, env)
        result = ullage.check(config=self._config, python=self._python, no_cache=True)
        (judged,) = result.judged
        if not judged.comparisons:
            raise RuntimeError(f"the program failed: {judged.reason}\n{judged.output}")
        (comparison,) = judged.comparisons
        locked = comparison.locked
        if locked is None:
            raise RuntimeError("the project was not locked")
        peaks, changes = comparison.entry.peaks, comparison.changes
        reasons = result.view.reasons(judged, comparison)
        return Trial(
            state=judged.state.value,
            changed_bytes=peaks.allocated_bytes - locked.peaks.allocated_bytes,
            changed_reserved_bytes=peaks.reserved_bytes - locked.peaks.reserved_bytes,
            needed_bytes=min(locked.peaks.allocated_bytes // 100, 32 * MIB),
            category=_grown(changes.categories),
            module=_grown(changes.modules),
            reason=reasons[0] if reasons else "",
        )

    def repeat(self) -> Repetition:
        """The program as it was locked, checked once more by the command line."""
        self._write((), ())
        return repeat(self._config, self._python)

    @property
    def _config(self) -> Path:
        return self._directory / "ullage.toml"

    def _write(self, edits: Sequence[tuple[str, str]], env: Sequence[tuple[str, str]]) -> None:
        source = self._source
        for old, new in edits:
            if old not in source:
                raise RuntimeError(f"the program has no {old!r} to change")
            source = source.replace(old, new)
        (self._directory / "train.py").write_text(source, encoding="utf-8")
        table = ", ".join(f'{name} = "{value}"' for name, value in env)
        self._config.write_text(
            f'[scenario.train]\ncommand = "train.py"\ngpu = "{GPU}"\nenv = {{ {table} }}\n',
            encoding="utf-8",
        )


def _grown(rows: Sequence[Changed]) -> str:
    """The owner that grew most; the outermost module is "."."""
    return next((row.name or "." for row in rows if row.changed_bytes > 0), "")
