"""Explains a memory snapshot of any PyTorch program: what `ullage explain` and
`ullage.explain_file` are.

    explanation = ullage.explain_file("snapshot.pickle")
    explanation.findings[0].what, explanation.findings[0].change
    print(explanation.text())
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ullage.answers.verb_answer import VerbAnswer
from ullage.ground.protocol.option import takes
from ullage.verbs.explain.options import ExplainOptions

if TYPE_CHECKING:
    from ullage.answers.block_kinds import Blocks
    from ullage.explain.rules.rule import Finding
    from ullage.explain.snapshot import SnapshotReport
    from ullage.verbs.views.views import ExplainView

FITS, OUT_OF_MEMORY = 0, 1


@dataclass(frozen=True, slots=True)
class Explanation(VerbAnswer):
    """An explained snapshot: its report, and what the rules found in it."""

    view: ExplainView

    @property
    def report(self) -> SnapshotReport:
        """All that is known of it: devices, their peaks, owners, fragmentation, growth."""
        return self.view.report

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of the rules: why it ran out of memory first, then the most bytes."""
        return self.view.findings

    @property
    def exit_code(self) -> int:
        """The exit code of the command line: 1 where running out of memory ended the program, else
        0.
        """
        return OUT_OF_MEMORY if any(finding.is_fatal for finding in self.findings) else FITS

    @property
    def has_record_alone(self) -> bool:
        """True if it is a recording of a GPU without a trace: `ullage.read_recording` reads it."""
        record = self.report.record
        is_measured = record is not None and record.measured is not None
        return is_measured and not self.report.devices

    @property
    def document(self) -> dict[str, Any]:
        """The document, schema "ullage.explain/1"."""
        from ullage.verbs.explain.document import explain_document

        return explain_document(self.view)

    @property
    def html(self) -> str:
        """One self-contained page: the map of addresses, the timeline, the findings, the report;
        the document is in it.

        Raises:
            SnapshotError: the file tells of no device memory.
        """
        from ullage.verbs.explain.page import render_explain_page

        return render_explain_page(self.view)

    def export(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Writes it for another tool, in the format that the ending of the name says: .pickle for
        PyTorch's memory_viz, .perfetto.json, .folded for flame graphs, .csv, .json, .ullage.

        Returns where it is: beside a file of that name, unless `force` is given.

        Raises:
            SpecError: the ending is of no format.
            SnapshotError: the format shows device memory, and the file tells of none.
            OSError: it cannot be written there.
        """
        from ullage.verbs.document.export import write_export

        return write_export(self.view, Path(path), force=force)

    def plot(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Draws what `ullage record` measured: memory, step times, retries, cudaFrees and latencies
        over the run, as .svg, .png or .pdf. Returns where it is.

        Raises:
            SpecError: matplotlib is missing, the file exists, its kind is not known, or no step or
                request was recorded.
        """
        from ullage.verbs.text.pressure import write_pressure_plot

        title = " ".join(argument for record in self.view.records for argument in record.argv)
        return write_pressure_plot(self.view.records, title, Path(path), force=force)

    def blocks(self, *, full: bool = False) -> Blocks:
        """The blocks of its report."""
        from ullage.verbs.explain.text import explain_blocks

        return explain_blocks(self.view)


@takes(ExplainOptions)
def explain_file(options: ExplainOptions) -> Explanation:
    """Explains a memory snapshot (torch 2.0 and later): the peak and who owned it, what is reserved
    and not used, what grows, why it ran out of memory, and what to do.

    Raises:
        SnapshotError: the file cannot be read, or is not a memory snapshot.
        SpecError: the size is not one, or there is no such interpreter.
        EnvironmentProblem: no torch for CUDA there to try remedies with.
    """
    from ullage.explain.remedies import derive_trials
    from ullage.explain.rules.registry import find_findings
    from ullage.explain.snapshot import explain_snapshot
    from ullage.ground.units import parse_bytes
    from ullage.log.snapshot_reader import read_snapshot
    from ullage.verbs.views.views import ExplainView

    request_bytes = None if options.request is None else parse_bytes(options.request)
    report = explain_snapshot(read_snapshot(Path(options.file)))
    findings = derive_trials(report, find_findings(report))
    if options.try_remedies:
        from ullage.explain.whatif.remedies import replay_trials

        interpreter = None if options.python is None else os.fspath(options.python)
        findings = replay_trials(report, findings, python=interpreter)
    return Explanation(ExplainView(os.fspath(options.file), report, findings, request_bytes))
