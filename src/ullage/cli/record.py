"""`ullage record`: runs a program on the GPU of this machine, and records its memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ullage.cli.options.command import command
from ullage.cli.output import OUTPUT, QUIET, Output, check_plot_option
from ullage.errors import SpecError
from ullage.protocol.options.record import RecordOptions

if TYPE_CHECKING:
    from ullage.api.record import Recorded


@dataclass(frozen=True, slots=True)
class RecordOutput(Output):
    """The outputs of a recording."""

    plot: Path | None = OUTPUT(
        "Draw what was recorded: memory, step times, retries, latencies (.svg, .png, .pdf).", "FILE"
    )


@command(
    most_used=("mode", "snapshot", "python"), says={"quiet": QUIET},
    outputs=("output", "as_json", "full", "force", "quiet"),
)  # fmt: skip
def record_command(options: RecordOptions, output: RecordOutput) -> int:
    """Run a program on the GPU of this machine, and record what it does with its memory.

    \b
    ullage record -- train.py --batch-size 16
    ullage record --mode counters -- train.py
    ullage record --snapshot ranks/ -- torchrun --nproc-per-node 8 train_ddp.py

    Exits with 0 if it ran through, 1 if it ran out of memory, 3 if it failed otherwise.
    """
    from ullage.api.record import record_program

    output.check(("--plot", output.plot))
    check_plot_option(output.plot)
    recorded = record_program.act(replace(options, stdout_to_stderr=output.as_json))
    return show_recorded(recorded, output, output.plot, recorded.files)


def show_recorded(
    recorded: Recorded, output: Output, plot: Path | None, files: tuple[Path, ...] = ()
) -> int:
    """Shows the report of what was recorded, draws the plot, and names the files that were
    written. What cannot be drawn does not hide the report.
    """
    from ullage.report.text.run import run_blocks

    problems = []
    if plot is not None:
        try:
            files = (*files, recorded.plot(plot, force=output.force))
        except (OSError, SpecError) as error:
            problems.append(f"{str(plot)!r} was not drawn: {error}")

    return output.give(recorded, run_blocks(recorded.report), files, problems)
