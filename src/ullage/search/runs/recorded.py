"""Runs a program on the GPU of this machine and records it; reads what was recorded.

report, files = run_recorded(resolve_program(["train.py"]), settings, stdout_to_stderr=False)
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ullage.explain.program import Program
from ullage.ground.errors import SnapshotError
from ullage.ground.printable import hide_secrets
from ullage.ground.protocol.variables import RECORDING
from ullage.players.inside.entrances.settings import RecordingSettings
from ullage.players.phantom.launch import SITE_DIR, start
from ullage.players.phantom.program import UserProgram, put_before
from ullage.search.runs.one import with_findings
from ullage.search.runs.timing import read_measured

if TYPE_CHECKING:
    from ullage.explain.run import RunReport
    from ullage.log.model import Record

_CLOCK_SLACK_S = 2.0  # of a file system's time stamps
_NO_RECORD = (
    "nothing was recorded: the program did not use a GPU through PyTorch's CUDA build, or it was "
    "killed before the recording was first written"
)


def run_recorded(
    program: UserProgram, settings: RecordingSettings, *, stdout_to_stderr: bool
) -> tuple[RunReport, tuple[Path, ...]]:
    """Runs a program, and explains what its processes recorded.

    Args:
        program: what is run.
        settings: its path is the file of the first process, and gives the others' their names.
        stdout_to_stderr: the program's own output goes to stderr.

    Returns:
        The report, and the files.

    Raises:
        EnvironmentProblem: the interpreter cannot be started.
    """
    environment = dict(os.environ)
    environment[RECORDING] = settings.to_variable()
    put_before(environment, "PYTHONPATH", str(SITE_DIR))
    began_s = time.time()
    with start(program, environment, stdout_to_stderr=stdout_to_stderr) as child:
        from ullage.explain.recorded import explain_recorded
        from ullage.explain.run import explain_run
        from ullage.facts.gpus.catalog import find_gpu
        from ullage.log.reader import read_record

        ended = child.wait()
    files = tuple(_new_files(settings.path, began_s))
    records: list[tuple[Record, str | None]] = []
    problems = [] if files else [_NO_RECORD]
    for file in files:
        try:
            records.append((read_record(file), str(file)))
        except SnapshotError as error:
            problems.append(str(error))
    as_parent_saw = Program(
        argv=hide_secrets(program.argv),
        pid=child.pid,
        exit_code=ended.exit_code,
        wall_s=ended.wall_s,
        was_interrupted=ended.was_interrupted,
        was_killed=ended.was_killed,
        not_kept=tuple(problems),
        remarks=program.remarks,
    )
    if not records:
        gpu = find_gpu("h100-80gb")
        report = explain_run([], program=as_parent_saw, torch="", gpu=gpu, is_unlimited=True)
        return report, files
    return with_findings(explain_recorded(records, as_parent_saw)), files


def _new_files(path: Path | None, began_s: float) -> Iterator[Path]:
    if path is None:
        return
    for file in (path, *sorted(path.parent.glob(f"{path.stem}-*{path.suffix}"))):
        if file.is_file() and file.stat().st_mtime >= began_s - _CLOCK_SLACK_S:
            yield file


def read_recorded(path: Path) -> tuple[RunReport, tuple[Path, ...]]:
    """Explains the file of a recording, or all those in a directory.

    Raises:
        SnapshotError: none is there, one cannot be read, or was not recorded on a GPU.
    """
    from ullage.explain.recorded import explain_recorded

    files = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
    records: list[tuple[Record, str | None]] = []
    for file in files:
        record = read_measured(file)
        if record is None:
            raise SnapshotError(
                f"{str(file)!r} was not recorded on a GPU by `ullage record`; give the directory "
                "of one job's recordings alone"
            )
        records.append((record, str(file)))
    if not records:
        raise SnapshotError(f"{str(path)!r} has no files; expected the recordings of a job's ranks")
    return with_findings(explain_recorded(records)), tuple(files)
