"""Compares two snapshot files: what `ullage diff` and `ullage.diff` are.

found = ullage.diff("before.pickle", "after.pickle")
found.changed_bytes, found.causes[0].text
print(found.text())
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ullage.errors import SnapshotError

if TYPE_CHECKING:
    from ullage.explain.compare.causes import Cause
    from ullage.explain.compare.diff import DiffReport
    from ullage.explain.snapshot import SnapshotReport


@dataclass(frozen=True, slots=True)
class Diff:
    """Two snapshots compared.

    Attributes:
        paths: of the files, as they were given.
        report: all that was found.
    """

    paths: tuple[str, str]
    report: DiffReport

    @property
    def changed_bytes(self) -> int:
        """By how much the peak of allocated bytes changed; positive: the second has more."""
        return self.report.changed_bytes

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Why it changed, the most telling first."""
        return self.report.causes

    @property
    def document(self) -> dict[str, Any]:
        """The document, schema "ullage.diff/1"."""
        from ullage.report.document.diff import diff_document

        return diff_document(self.report)

    @property
    def html(self) -> str:
        """One self-contained page: both runs on the same axes, and the report; the document is in
        it.
        """
        from ullage.report.page.diff import render_diff_page

        return render_diff_page(self.report, self.paths)

    def text(self, width: int = 80) -> str:
        """The comparison for people, without colour."""
        from ullage.report.text.diff import render_diff

        return render_diff(self.report, width)


def diff(before: str | os.PathLike[str], after: str | os.PathLike[str]) -> Diff:
    """Compares two snapshot files.

    Raises:
        SnapshotError: one of them cannot be read, or holds no device memory.
    """
    from ullage.explain.compare.diff import diff_snapshots

    paths = Path(before), Path(after)
    reports = [_explain(path) for path in paths]
    comparison = diff_snapshots(*reports)
    if comparison is None:
        empty = next(
            path for path, report in zip(paths, reports, strict=True) if not report.devices
        )
        raise SnapshotError(f"{str(empty)!r} holds no device memory; there is nothing to compare")
    return Diff((os.fspath(before), os.fspath(after)), comparison)


def _explain(path: Path) -> SnapshotReport:
    from ullage.explain.snapshot import explain_snapshot
    from ullage.trace.snapshot_reader import read_snapshot

    return explain_snapshot(read_snapshot(path))
