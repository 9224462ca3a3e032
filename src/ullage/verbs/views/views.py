"""The input of a verb's text, document and page if they need more than the verb's result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ullage.explain.rules.rule import Finding
from ullage.explain.snapshot import SnapshotReport
from ullage.log.model import Record

if TYPE_CHECKING:  # explain starts without the gate
    from ullage.explain.compare.diff import DiffReport
    from ullage.verbs.check.gate.compare import Comparison
    from ullage.verbs.check.gate.verdicts import Judged


@dataclass(frozen=True, slots=True)
class ExplainView:
    """The input of `explain`'s output: the report, the findings, and further questions of the user.

    Attributes:
        path: the path of the file, as the user gave it.
        request_bytes: the size of a request that might fit; None: the user gave none.
    """

    path: str
    report: SnapshotReport
    findings: tuple[Finding, ...]
    request_bytes: int | None = None

    @property
    def records(self) -> tuple[Record, ...]:
        """The records of ullage: one, or none in a snapshot of PyTorch's alone."""
        return () if self.report.record is None else (self.report.record,)


@dataclass(frozen=True, slots=True)
class CheckView:
    """The input of `check`'s output: its configuration file, its cases, and, by the name of an
    entry, the comparison with the locked run if that run's snapshot is here.
    """

    path: Path
    judged: tuple[Judged, ...]
    diffs: Mapping[str, DiffReport]

    def reasons(self, judged: Judged, comparison: Comparison) -> tuple[str, ...]:
        """Why a device uses more memory than before."""
        from ullage.verbs.check.gate.reasons import find_reasons

        lines = judged.measured[comparison.name].lines
        reasons = find_reasons(comparison, lines, self.diffs.get(comparison.name))
        # Snapshots name files with their directory; a check omits the program's own directory.
        own = f" {judged.scenario.directory.name}/"
        return tuple(reason.replace(own, " ") for reason in reasons)
