"""What text, document and page of a verb are made from, where that is more than its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ullage.explain.compare.diff import DiffReport
from ullage.explain.rules.rule import Finding
from ullage.explain.snapshot import SnapshotReport
from ullage.gate.compare import Comparison
from ullage.gate.reasons import find_reasons
from ullage.gate.verdicts import Judged


@dataclass(frozen=True, slots=True)
class ExplainView:
    """What is printed: the report, what the rules found, and what was asked besides.

    Attributes:
        path: of the file, as the user gave it.
        request_bytes: a size whose room is asked for; None: none.
    """

    path: str
    report: SnapshotReport
    findings: tuple[Finding, ...]
    request_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class CheckView:
    """What a check shows: where it is configured, its cases, and by the name of an entry what it
    differs in from the run that was locked, where that is here.
    """

    path: Path
    judged: tuple[Judged, ...]
    diffs: Mapping[str, DiffReport]

    def reasons(self, judged: Judged, comparison: Comparison) -> tuple[str, ...]:
        """Why a device takes more than it did."""
        lines = judged.measured[comparison.name].lines
        reasons = find_reasons(comparison, lines, self.diffs.get(comparison.name))
        # Snapshots name a file with its directory; to a check the program's own goes without.
        own = f" {judged.scenario.directory.name}/"
        return tuple(reason.replace(own, " ") for reason in reasons)
