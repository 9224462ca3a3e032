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

from ullage.errors import EnvironmentProblem, SnapshotError
from ullage.phantom.caches import unused_cache
from ullage.phantom.launch import PROGRESS_FILE, Ended, make_environment, run_directory, start
from ullage.runs.job import Job, job_peer_ranks

if TYPE_CHECKING:
    from ullage.explain.run import RunReport
    from ullage.techniques.applying.outcome import Outcome
    from ullage.trace.model import Record


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
    from ullage.explain.killed import record_of
    from ullage.explain.program import Program
    from ullage.explain.run import explain_run
    from ullage.gpus.catalog import load_catalog
    from ullage.phantom.artifacts import collect
    from ullage.record.requests.requests import read_notes
    from ullage.record.session.frameworks import other_frameworks

    artifacts = collect(run_dir, pid, snapshot, force=force)
    records = [(_with_both_ends(record, place, job), place) for record, place in artifacts.records]
    for number, levels in artifacts.levels.items():
        # The program itself has to end well to be judged, unless it is a server that was stopped.
        if levels.devices and (number != pid or ended.was_stopped):
            records.append((record_of(number, levels, job.device.gpu, job.build.version), None))
    known = {record.pid for record, _ in records}
    failed = (note for note in read_notes(run_dir) if note.failure)
    report = explain_run(
        records,
        program=Program(
            argv=job.program.argv,
            pid=pid,
            exit_code=ended.exit_code,
            wall_s=ended.wall_s,
            was_interrupted=ended.was_interrupted,
            timed_out_after_s=ended.timed_out_after_s,
            unrecorded=tuple(
                process for process in artifacts.unrecorded if process[0] not in known
            ),
            left_running=ended.left_running,
            not_kept=artifacts.warnings,
            failed_request=next(failed, None),
            plan=_outcome(job, run_dir),
            remarks=(*_remarks(job, records), *other_frameworks(run_dir, known)),
        ),
        torch=job.build.version,
        gpu=job.device.usable,
        is_unlimited=job.device.is_unlimited,
        catalogued=load_catalog(),
    )
    return _with_findings(report)


def _remarks(job: Job, records: Iterable[tuple[Record, str | None]]) -> Iterator[str]:
    """Those of the program, and the compiler's cache that was not used where it timed kernels."""
    yield from job.program.remarks
    remark = unused_cache({**os.environ, **dict(job.options.variables)})
    if remark is not None and any(record.num_timed for record, _ in records):
        yield remark


def _with_findings(report: RunReport) -> RunReport:
    """The report with what is found in the snapshots of processes that ran out of memory."""
    if not any(
        process.oom is not None and process.snapshot is not None for process in report.processes
    ):
        return report
    from ullage.explain.remedies import find_remedies

    processes = tuple(
        replace(process, findings=find_remedies(process.snapshot))
        if process.oom is not None and process.snapshot is not None
        else process
        for process in report.processes
    )
    return replace(report, processes=processes)


def _outcome(job: Job, run_dir: Path) -> Outcome | None:
    """What became of the plan of a job."""
    options = job.options
    if options.plan is None and not options.describes:
        return None
    from ullage.techniques.applying.outcome import read_outcome

    return read_outcome(run_dir, options.plan)


def _with_both_ends(record: Record, snapshot: str | None, job: Job) -> Record:
    """The record with what its devices would have needed had all work been done at once, and had
    Inductor's cache been warm, where anything hung on that and there is a trace to replay.
    """
    if not (record.num_not_yet or record.num_timed) or snapshot is None:
        return record
    from ullage.trace.snapshot_reader import read_snapshot
    from ullage.whatif.child import Where
    from ullage.whatif.completion import measure_at_once
    from ullage.whatif.tuning import measure_warm

    where = Where(job.program.python, job.build, job.device)
    try:
        trace = read_snapshot(Path(snapshot))
        at_once = measure_at_once(trace, where) if record.num_not_yet else ()
        warm = measure_warm(trace, where) if record.num_timed else ()
        return replace(record, at_once=at_once, warm=warm)
    except (EnvironmentProblem, SnapshotError) as error:  # the run itself is not to be lost for it
        why = f"the lower end of what would be reserved was not measured: {error}"
        return replace(record, warnings=(*record.warnings, why))


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
