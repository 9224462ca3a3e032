"""A run as one HTML file: the snapshot of each of its processes, and the terminal's report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ullage.answers.html import render_page
from ullage.explain.moments.step_levels import step_levels, timed_device
from ullage.explain.remedies import derive_trials
from ullage.explain.rules.registry import find_findings
from ullage.explain.run import Process, RunReport
from ullage.explain.snapshot import explain_snapshot
from ullage.ground.errors import SnapshotError
from ullage.ground.protocol.plain import document_of
from ullage.log.snapshot_reader import read_snapshot
from ullage.verbs.explain.page import make_pages
from ullage.verbs.page.payload import SnapshotPage, map_of
from ullage.verbs.page.time import StepPage
from ullage.verbs.run.text import run_blocks
from ullage.verbs.views.views import ExplainView


def render_run_page(report: RunReport) -> str:
    """Renders the page of a run: the devices of all processes with a stored snapshot.

    Raises:
        SnapshotError: there is no snapshot, or one cannot be read or has no device memory.
    """
    processes = [process for process in report.processes if process.snapshot is not None]
    if not processes:
        raise SnapshotError(
            "no snapshot of the run was kept: the program used no GPU, or no file was named for it"
        )
    pages = [
        page for process in processes for page in _make_pages(process, is_only=len(processes) == 1)
    ]
    if report.is_unlimited:
        pages = [replace(page, capacity=None) for page in pages]
    program = report.program.argv
    title = " ".join((Path(program[0]).name, *program[1:])) if program else "run"
    return render_page(title, [*run_blocks(report), map_of(*pages)], document_of(report))


def _make_pages(process: Process, *, is_only: bool) -> list[SnapshotPage]:
    """The devices of a process; if there are several processes, their names include the rank."""
    snapshot = explain_snapshot(read_snapshot(Path(str(process.snapshot))))
    findings = process.findings or derive_trials(snapshot, find_findings(snapshot))
    pages = make_pages(ExplainView(str(process.snapshot), snapshot, findings))
    record = process.record
    if process.time is not None:
        step = StepPage(process.time, step_levels(record, process.time))
        timed = timed_device(record, process.time)
        pages = [replace(page, step=step if page.device == timed else None) for page in pages]
    if is_only:
        return pages
    which = f"process {record.pid}" if record.rank is None else f"rank {record.rank}"
    return [replace(page, title=f"{which}, device {page.device}") for page in pages]
