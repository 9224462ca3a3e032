"""`ullage record`: runs a program on the GPU of this machine, and records its memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ullage.verbs.command_line.command import command
from ullage.verbs.command_line.output import PLOTS, Output
from ullage.verbs.record.options import RecordOptions

if TYPE_CHECKING:
    from ullage.verbs.record.function import Recorded

SHOWS_RECORDED = (
    "Also write .json, the document; .svg, .png or .pdf, a plot of memory, step times, retries and "
    "latencies; repeatable."
)


@command(
    most_used=("mode", "snapshot", "python"), outputs=("output", "as_json", "full"),
    says={"output": SHOWS_RECORDED},
)  # fmt: skip
def record_command(options: RecordOptions, output: Output) -> int:
    """Run a program on the GPU of this machine, and record what it does with its memory.

    \b
    ullage record -- train.py --batch-size 16
    ullage record --mode counters -- train.py
    ullage record --snapshot ranks/ -- torchrun --nproc-per-node 8 train_ddp.py

    Exits with 0 if it ran through, 1 if it ran out of memory, 3 if it failed otherwise.
    """
    from ullage.verbs.record.function import record_program

    output.check(*PLOTS)
    recorded = record_program.act(replace(options, stdout_to_stderr=output.as_json))
    return show_recorded(recorded, output, recorded.files)


def show_recorded(recorded: Recorded, output: Output, files: tuple[Path, ...] = ()) -> int:
    """Shows the report of what was recorded, and names the files that were written."""

    return output.give(recorded, files)
