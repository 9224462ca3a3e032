"""Records a program on the GPU of this machine: what `ullage record` is.

    recording = record_program(["train.py"], snapshot="run.pickle")
    recording.peak_allocated_bytes, recording.document["basis"]["allocator"]["kind"]   # "measured"

`ullage.record(...)` itself records from within a program (players/inside/entrances/recording.py).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ullage.answers.verb_answer import VerbAnswer
from ullage.ground.errors import SpecError
from ullage.ground.files import check_writable
from ullage.ground.protocol.option import takes
from ullage.ground.protocol.plain import Mark
from ullage.players.inside.entrances.settings import Mode, RecordingSettings, parse_ring
from ullage.players.phantom.program import resolve_program
from ullage.search.runs.recorded import read_recorded, run_recorded
from ullage.verbs.record.options import RecordOptions
from ullage.verbs.run.function import default_snapshot

if TYPE_CHECKING:
    from ullage.answers.block_kinds import Blocks
    from ullage.explain.run import RunReport

_MAX_STEM = 200


@dataclass(frozen=True, slots=True)
class Recorded(VerbAnswer):
    """A recorded program: its report, and the files of its processes."""

    report: Annotated[RunReport, Mark.FLAT]
    files: Annotated[tuple[Path, ...], Mark.NO_KEY]

    @property
    def exit_code(self) -> int:
        """The exit code of the command line."""
        return int(self.report.exit_code)

    @property
    def peak_allocated_bytes(self) -> int:
        """The most bytes allocated on a device."""
        peaks = (device.totals.peak_allocated_bytes for device in self.report.devices)
        return max(peaks, default=0)

    @property
    def peak_reserved_bytes(self) -> int:
        """The most bytes reserved on a device."""
        peaks = (device.totals.peak_reserved_bytes for device in self.report.devices)
        return max(peaks, default=0)

    def plot(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Draws memory, step times, retries, cudaFrees and latencies over the run: .svg, .png or
        .pdf. Returns where it is.

        Raises:
            SpecError: matplotlib is missing, the file exists, its kind is not known, or no step or
                request was recorded.
        """
        from ullage.verbs.text.pressure import write_pressure_plot

        records = [process.record for process in self.report.processes]
        title = " ".join(self.report.program.argv)
        return write_pressure_plot(records, title, Path(path), force=force)

    def blocks(self, *, full: bool = False) -> Blocks:
        """The blocks of its report."""
        from ullage.verbs.run.text import run_blocks

        return run_blocks(self.report)


@takes(RecordOptions)
def record_program(options: RecordOptions) -> Recorded:
    """Runs a program on the GPU of this machine, and records what it does with its memory. To the
    name of `snapshot` ranks and other processes add theirs; it may be a directory that is there.

    Raises:
        SpecError: an option or the program is not possible.
        EnvironmentProblem: the interpreter cannot be started.
    """
    resolved = resolve_program(options.program, options.python)
    path = (
        default_snapshot(options.program, options.python, prefix="ullage-record")
        if options.snapshot is None
        else Path(options.snapshot)
    )
    if path.is_dir():
        path = path / f"{resolved.name[:_MAX_STEM]}.pickle"
    check_writable(path, force=options.force)
    every = options.every
    if every is not None and not every > 0:
        raise SpecError(f"every={every!r} is not an interval; expected seconds, such as 60")
    settings = RecordingSettings(
        path.absolute(), Mode(options.mode), parse_ring(options.ring), every, options.publish,
        has_kernels=options.kernels, is_first=True,
    )  # fmt: skip
    report, files = run_recorded(resolved, settings, stdout_to_stderr=options.stdout_to_stderr)
    if not path.is_absolute():
        files = tuple(file.relative_to(Path.cwd()) for file in files)
    return Recorded(report, files)


def read_recording(path: str | os.PathLike[str]) -> Recorded:
    """Reads the file of a recording, or those of a job's ranks in a directory.

    Raises:
        SnapshotError: it cannot be read, or was not recorded on a GPU.
    """
    return Recorded(*read_recorded(Path(path)))
