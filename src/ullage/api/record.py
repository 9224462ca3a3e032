"""Records a program on the GPU of this machine: what `ullage record` is.

    recording = record_program(["train.py"], snapshot="run.pickle")
    recording.peak_allocated_bytes, recording.document["basis"]["allocator"]["kind"]   # "measured"

`ullage.record(...)` itself records from within a program (record/entrances/recording.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ullage.errors import SpecError
from ullage.files import check_writable
from ullage.phantom.program import resolve_program
from ullage.record.entrances.settings import Mode, RecordingSettings, parse_ring
from ullage.runs.recorded import read_recorded, run_recorded

if TYPE_CHECKING:
    from ullage.explain.run import RunReport

_MAX_STEM = 200


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded program: its report, and the files of its processes."""

    report: RunReport
    files: tuple[Path, ...]

    @property
    def exit_code(self) -> int:
        """What the command line exits with."""
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

    @property
    def document(self) -> dict[str, Any]:
        """The run document, schema "ullage.run/1", with the basis "measured"."""
        from ullage.report.document.run import run_document

        return run_document(self.report)

    def plot(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Draws memory, step times, retries, cudaFrees and latencies over the run: .svg, .png or
        .pdf. Returns where it is.

        Raises:
            SpecError: matplotlib is missing, the file exists, its kind is not known, or no step or
                request was recorded.
        """
        from ullage.report.text.pressure import write_pressure_plot

        records = [process.record for process in self.report.processes]
        title = " ".join(self.report.program.argv)
        return write_pressure_plot(records, title, Path(path), force=force)

    def text(self, width: int = 80, *, full: bool = False) -> str:
        """The report for people, without colour: in short, or the whole of it."""

        from ullage.answers.text import render
        from ullage.report.text.run import brief_run_blocks, run_blocks

        return render((run_blocks if full else brief_run_blocks)(self.report), width)


def record_program(
    program: Sequence[str],
    *,
    snapshot: str | os.PathLike[str],
    mode: str = "full",
    ring: str | int = "64MiB",
    every: float | None = 60.0,
    publish: bool = True,
    kernels: bool = False,
    python: str | None = None,
    force: bool = False,
    stdout_to_stderr: bool = False,
) -> Recorded:
    """Runs a program on the GPU of this machine, and records what it does with its memory.

    Args:
        program: its words, as they would follow `ullage record --`.
        snapshot: where the recording goes: a file, to whose name ranks and other processes add
            theirs, or a directory that is there.
        mode: "full", "events" (no stacks) or "counters" (the peaks of steps alone).
        ring: the host memory for events and stacks, about; the oldest are lost.
        every: the file is written anew after a step when so many seconds have passed; None: at the
            end and when memory runs out only.
        publish: whether the processes publish their state for `ullage watch`.
        kernels: PyTorch's profiler times the kernels of the third step, which corrects the clock
            (`measured` of `ullage.run`).
        python: the interpreter of another environment.
        force: overwrite that file.
        stdout_to_stderr: the program's own output goes to stderr.

    Raises:
        SpecError: an option or the program is not possible.
        EnvironmentProblem: the interpreter cannot be started.
    """
    resolved = resolve_program(program, python)
    path = Path(snapshot)
    if path.is_dir():
        path = path / f"{resolved.name[:_MAX_STEM]}.pickle"
    check_writable(path, force=force)
    if every is not None and not every > 0:
        raise SpecError(f"every={every!r} is no interval; expected seconds, such as 60")
    settings = RecordingSettings(
        path.absolute(), Mode(mode), parse_ring(ring), every, publish, has_kernels=kernels,
        is_first=True,
    )  # fmt: skip
    report, files = run_recorded(resolved, settings, stdout_to_stderr=stdout_to_stderr)
    if not path.is_absolute():
        files = tuple(file.relative_to(Path.cwd()) for file in files)
    return Recorded(report, files)


def read_recording(path: str | os.PathLike[str]) -> Recorded:
    """Reads the file of a recording, or those of a job's ranks in a directory.

    Raises:
        SnapshotError: it cannot be read, or was not recorded on a GPU.
    """
    return Recorded(*read_recorded(Path(path)))
