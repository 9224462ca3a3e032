"""Compares two snapshot files: what `ullage diff` and `ullage.diff` are.

found = ullage.diff("before.pickle", "after.pickle")
found.changed_bytes, found.causes[0].text
print(found.text())
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ullage.answers.verb_answer import VerbAnswer
from ullage.ground.errors import SnapshotError, SpecError
from ullage.ground.protocol.option import takes
from ullage.ground.protocol.plain import Mark
from ullage.verbs.diff.options import DiffOptions

if TYPE_CHECKING:
    from ullage.answers.block_kinds import Blocks
    from ullage.explain.compare.causes import Cause
    from ullage.explain.compare.diff import DiffReport
    from ullage.explain.compare.memory_here import NotKnown
    from ullage.explain.compare.totals import Totals
    from ullage.explain.snapshot import SnapshotReport
    from ullage.facts.gpus.measured_memory import MeasuredMemory


@dataclass(frozen=True, slots=True)
class Diff(VerbAnswer):
    """Two snapshots compared.

    Attributes:
        paths: of the files, as they were given.
        report: all that was found.
    """

    paths: Annotated[tuple[str, str], Mark.NO_KEY]
    report: Annotated[DiffReport, Mark.FLAT]

    @property
    def changed_bytes(self) -> int:
        """By how much the peak of allocated bytes changed; positive: the second has more."""
        return self.report.changed_bytes

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Why it changed, the most telling first."""
        return self.report.causes

    @property
    def memory(self) -> MeasuredMemory | NotKnown | None:
        """The measured figures of the GPU beside the program's tensors, or why there are none;
        None: the pair is not a prediction with its measurement.
        """
        from ullage.explain.compare.memory_here import find_memory

        return find_memory(self.report)

    def store_memory(self) -> Path | None:
        """Keeps `memory` for `ullage gpus`, in place of what was measured before; returns the file,
        None where nothing is known.

        Raises:
            SpecError: the file cannot be written.
        """
        from ullage.facts.gpus.measured_memory import MeasuredMemory, memory_path
        from ullage.ground.files import write_text

        memory = self.memory
        if not isinstance(memory, MeasuredMemory):
            return None
        path = memory_path(memory.gpu)
        text = json.dumps(memory.document, indent=2) + "\n"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return write_text(text, path, force=True)
        except OSError as error:
            raise SpecError(
                f"{str(path)!r} cannot be written: {error.strerror or error}; use --no-store"
            ) from None

    @property
    def html(self) -> str:
        """One self-contained page: both runs on the same axes, and the report; the document is in
        it.
        """
        from ullage.verbs.diff.page import render_diff_page

        return render_diff_page(self.report, self.paths)

    def blocks(self, *, full: bool = False) -> Blocks:
        """The blocks of its report."""
        from ullage.verbs.diff.text import diff_blocks

        return diff_blocks(self.report)


@takes(DiffOptions)
def diff(options: DiffOptions) -> Diff:
    """Compares two snapshot files. A document of `ullage run` or `ullage explain` stands for its
    snapshot; where that is gone, the peaks alone are compared.

    Raises:
        SnapshotError: one of them cannot be read, or holds no device memory.
    """
    from ullage.explain.compare.diff import diff_snapshots, diff_totals
    from ullage.explain.compare.totals import Totals

    paths = os.fspath(options.before), os.fspath(options.after)
    first, second = (_explain(Path(path)) for path in paths)
    comparison = (
        diff_totals(first, second)
        if isinstance(first, Totals) or isinstance(second, Totals)
        else diff_snapshots(first, second)
    )
    return Diff(paths, comparison)


def _explain(path: Path) -> SnapshotReport | Totals:
    from ullage.explain.compare.totals import Totals, read_document
    from ullage.explain.snapshot import explain_snapshot
    from ullage.log.snapshot_reader import read_snapshot

    source = read_document(path)
    if isinstance(source, Totals):
        return source
    report = explain_snapshot(read_snapshot(source))
    if not report.devices:
        raise SnapshotError(f"{str(path)!r} holds no device memory; there is nothing to compare")
    return report
