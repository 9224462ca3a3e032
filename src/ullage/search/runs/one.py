"""Runs a job in a process of its own, and reads what it left.

    report = run_job(job, Path("run.pickle"), stdout_to_stderr=False)

The child is started before anything heavy is imported, so that its start-up and ours overlap.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ullage.ground.errors import EnvironmentProblem, SnapshotError
from ullage.ground.printable import hide_secrets
from ullage.ground.protocol.run import Platform
from ullage.players.phantom.caches import unused_cache
from ullage.players.phantom.launch import (
    PROGRESS_FILE,
    Ended,
    make_environment,
    run_directory,
    start,
)
from ullage.search.runs.job import Job, job_peer_ranks

if TYPE_CHECKING:
    from ullage.act.techniques.applying.outcome import Outcome
    from ullage.explain.run import Process, RunReport
    from ullage.explain.whatif.replays import Where
    from ullage.log.bounds import OtherPeaks
    from ullage.log.model import Record
    from ullage.log.snapshot import Snapshot
    from ullage.players.phantom.artifacts import Artifacts


def run_job(
    job: Job,
    snapshot: Path | None,
    *,
    stdout_to_stderr: bool,
    on_progress: Callable[[str], None] | None = None,
    force: bool = False,
    meanwhile: Callable[[], object] | None = None,
) -> RunReport:
    """Runs a job in a process of its own, and explains it.

    Args:
        job: what is run.
        snapshot: the file for its snapshot; None: none is kept.
        stdout_to_stderr: the program's own output goes to stderr.
        on_progress: called with a line as steps end.
        force: replace the snapshot file.
        meanwhile: called once while the child runs: to import what its report will need.
    """
    with run_directory() as run_dir, job_peer_ranks(job, run_dir) as peers:
        environment = make_environment(run_dir, job.device, job.build, job.options)
        if peers is not None and job.options.rank is not None:
            peers.note_start(job.options.rank.number)
        with start(job.program, environment, stdout_to_stderr=stdout_to_stderr) as child:
            from ullage.explain.run import explain_run  # noqa: F401 - while the child runs

            if meanwhile is not None:
                meanwhile()
            ended = child.wait(_watch(run_dir / PROGRESS_FILE, on_progress))
        return explain_job(job, run_dir, child.pid, ended, snapshot, force=force)


def explain_job(
    job: Job, run_dir: Path, pid: int, ended: Ended, snapshot: Path | None, *, force: bool = False
) -> RunReport:
    """Explains what the process `pid` of a job and its children left in `run_dir`."""
    from ullage.explain.program import Program
    from ullage.explain.run import explain_run
    from ullage.facts.gpus.catalog import load_catalog
    from ullage.players.inside.process.frameworks import other_frameworks
    from ullage.players.inside.requests.requests import read_notes
    from ullage.players.phantom.artifacts import collect

    artifacts = collect(run_dir, pid, snapshot, force=force)
    records = _all_records(artifacts, pid, ended, job)
    known = {record.pid for record, _ in records}
    unused = _unused_caches(job, records)
    report = explain_run(
        records,
        program=Program(
            argv=hide_secrets(job.program.argv),
            pid=pid,
            exit_code=ended.exit_code,
            wall_s=ended.wall_s,
            was_interrupted=ended.was_interrupted,
            timed_out_after_s=ended.timed_out_after_s,
            was_killed=ended.was_killed,
            unrecorded=tuple(row for row in artifacts.unrecorded if row[0] not in known),
            left_running=ended.left_running,
            not_kept=artifacts.warnings,
            failed_request=next((note for note in read_notes(run_dir) if note.failure), None),
            plan=_outcome(job, run_dir),
            remarks=(*job.program.remarks, *other_frameworks(run_dir, known), *unused),
        ),
        torch=job.build.version,
        gpu=job.device.usable,
        is_unlimited=job.device.is_unlimited,
        catalogued=load_catalog,
    )
    return with_findings(_with_times(report, job))


def _all_records(
    artifacts: Artifacts, pid: int, ended: Ended, job: Job
) -> list[tuple[Record, str | None]]:
    """Those that processes wrote, and what is known of processes that were killed. The program
    itself has to end well to be judged, unless it was ended for it.
    """
    from ullage.explain.killed import record_of

    is_judged = ended.was_stopped or ended.was_killed
    written = [(_with_both_ends(record, place, job), place) for record, place in artifacts.records]
    return written + [
        (record_of(number, levels, job.device.gpu, job.build.version), None)
        for number, levels in artifacts.levels.items()
        if levels.devices and (number != pid or is_judged)
    ]


def _unused_caches(job: Job, records: Iterable[tuple[Record, str | None]]) -> Iterator[str]:
    """The caches named for the compiler that were not used, if kernels were timed."""
    remark = unused_cache({**os.environ, **dict(job.options.variables)})
    if remark is not None and any(record.num_timed for record, _ in records):
        yield remark


def with_findings(report: RunReport) -> RunReport:
    """The report with what is found in the snapshots of processes that ran out of memory, and with
    what grows in those of others.
    """
    growing = {device.pid for device in report.devices if device.growth_text}

    def add_findings(process: Process) -> Process:
        if process.snapshot is None or not (process.oom or process.record.pid in growing):
            return process
        from ullage.explain.remedies import find_remedies
        from ullage.explain.rules.graphs import LEAKS

        findings = find_remedies(process.snapshot, process.record)
        if process.oom is None:
            findings = tuple(each for each in findings if each.rule.code in LEAKS)
        return replace(process, findings=findings)

    return replace(report, processes=tuple(map(add_findings, report.processes)))


def _with_times(report: RunReport, job: Job) -> RunReport:
    """The report with the time of a step, where it was asked for."""
    if not job.options.has_clock:
        return report
    from ullage.search.runs.timing import time_process

    options = job.options
    links, measured = options.run.interconnect, options.measured
    processes = tuple(
        replace(process, time=time_process(process.record, job.device.gpu, links, measured))
        for process in report.processes
    )
    return replace(report, processes=processes)


def _outcome(job: Job, run_dir: Path) -> Outcome | None:
    options = job.options
    if options.plan is None and not (options.describes or options.chooses_rungs):
        return None
    from ullage.act.techniques.applying.outcome import read_outcome

    outcome = read_outcome(run_dir, options.plan)
    # A program under a guard need not train a model.
    return replace(outcome, is_applied=outcome.is_applied or options.chooses_rungs)


def _with_both_ends(record: Record, snapshot: str | None, job: Job) -> Record:
    """The record with what its devices would have needed under the other end of each assumption on
    which a trace's bytes hang: all work done at once, addresses in the other order, Inductor's
    cache warm, and workspaces of libraries at their bounds.
    """
    hangs_on_work = record.num_not_yet or record.operands or record.num_timed or record.scratch
    if not (hangs_on_work or job.build.chooses_by_address):
        return record
    from ullage.explain.whatif.other_ends import measure_by_events, measure_other_order
    from ullage.explain.whatif.replays import Where
    from ullage.log.snapshot_reader import read_snapshot

    where = Where(job.program.python, job.build, job.device)
    try:
        if snapshot is None:
            return measure_by_events(record, where, Platform(job.options.run.platform))
        trace = read_snapshot(Path(snapshot), has_record=False)
        if job.build.chooses_by_address:
            record = replace(record, otherwise=measure_other_order(trace, where))
        more = _replay_otherwise(record, trace, where)
        return replace(record, otherwise=(*record.otherwise, *more))
    except (EnvironmentProblem, SnapshotError) as error:  # the run itself is not to be lost for it
        why = f"what else might have been reserved was not measured: {error}"
        return replace(record, warnings=(*record.warnings, why))


def _replay_otherwise(record: Record, snapshot: Snapshot, where: Where) -> Iterator[OtherPeaks]:
    """The peaks of PyTorch's allocator when it replays the trace."""
    from ullage.explain.whatif.other_ends import measure_at_once, measure_warm, measure_workspaces

    if record.num_not_yet or record.operands:
        yield from measure_at_once(snapshot, record, where)
    if record.num_timed:
        yield from measure_warm(snapshot, where)
    if record.scratch:
        yield from measure_workspaces(snapshot, record, where)


def _watch(path: Path, on_progress: Callable[[str], None] | None) -> Callable[[], None] | None:
    """The function that reports finished steps, to be called about ten times a second."""
    if on_progress is None:
        return None
    num_bytes = 0

    def look() -> None:
        nonlocal num_bytes
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                file.seek(num_bytes)
                text = file.read()
        except FileNotFoundError:
            return
        whole, newline, _rest = text.rpartition("\n")
        num_bytes += len((whole + newline).encode())
        if whole:
            on_progress(whole.rpartition("\n")[2])

    return look
