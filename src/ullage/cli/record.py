"""`ullage record`: runs a program on the GPU of this machine, and records its memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ullage.cli.options import flags
from ullage.cli.output import (
    FILE,
    UNWRITABLE,
    Output,
    check_files,
    check_plot_option,
    write_result,
)
from ullage.errors import SpecError

if TYPE_CHECKING:
    from ullage.api.record import Recorded


@click.command(
    "record",
    context_settings={"allow_interspersed_args": False},
    cls=flags.in_sections(
        {
            "Most used": ("mode", "snapshot", "python"),
            "Recording": ("kernels", "ring", "every", "publish"),
            "Output": ("output", "plot", "as_json", "full", "force", "quiet"),
        }
    ),
)
@flags.program
@click.option(
    "--mode",
    type=click.Choice(("full", "events", "counters")),
    default="full",
    help="full: allocations with stacks, owners and modules. events: without stacks. counters: "
    "peaks of each step, no cost per allocation. Default: full.",
)
@click.option(
    "--snapshot",
    type=FILE,
    metavar="FILE",
    help="Recording; default: a new file here. A directory: a file for each rank.",
)
@flags.python
@click.option(
    "--kernels",
    is_flag=True,
    help="Also time the kernels of the third step, for --measured of `ullage run` and `fit`.",
)
@click.option(
    "--ring",
    default="64MiB",
    metavar="SIZE",
    help="Host memory for what is recorded; the oldest is dropped. Default: 64MiB.",
)
@click.option(
    "--every",
    type=float,
    default=60.0,
    metavar="SECONDS",
    help="Rewrite the file after a step when this time has passed. Default: 60.",
)
@click.option(
    "--publish/--no-publish",
    default=True,
    help="Publish the job's state for `ullage watch`. Default: yes.",
)
@click.option(
    "-o", "--output", type=FILE, metavar="FILE", help="Also write the run document (JSON)."
)
@flags.plot_recorded
@click.option(
    "--json", "as_json", is_flag=True, help="Print the run document (JSON) instead of the report."
)
@flags.full
@flags.force
@flags.quiet_run
def record_command(
    program: tuple[str, ...],
    *,
    mode: str,
    snapshot: Path | None,
    python: str | None,
    kernels: bool,
    ring: str,
    every: float,
    publish: bool,
    output: Path | None,
    plot: Path | None,
    as_json: bool,
    full: bool,
    force: bool,
    quiet: bool,
) -> int:
    """Run a program on the GPU of this machine, and record what it does with its memory.

    \b
    ullage record -- train.py --batch-size 16
    ullage record --mode counters -- train.py
    ullage record --snapshot ranks/ -- torchrun --nproc-per-node 8 train_ddp.py

    Exits with 0 if it ran through, 1 if it ran out of memory, 3 if it failed otherwise.
    """
    from ullage.api.record import record_program
    from ullage.api.run import default_snapshot

    path = snapshot or default_snapshot(program, python, prefix="ullage-record")
    check_files(("--output", output), ("--plot", plot), force=force)
    check_plot_option(plot)
    target = Output(is_json=as_json, is_quiet=quiet, path=output, force=force, is_full=full)
    recorded = record_program(
        program, snapshot=path, mode=mode, ring=ring, every=every, publish=publish,
        kernels=kernels, python=python, force=force, stdout_to_stderr=as_json,
    )  # fmt: skip
    is_written = show_recorded(recorded, target, files=recorded.files, plot=plot)
    return recorded.exit_code if is_written else UNWRITABLE


def show_recorded(
    recorded: Recorded, output: Output, *, files: tuple[Path, ...] = (), plot: Path | None = None
) -> bool:
    """Shows the report of what was recorded, draws the plot, and names the files that were
    written. What cannot be drawn does not hide the report.
    """
    from ullage.report.text.run import brief_run_blocks, run_blocks

    problems = []
    if plot is not None:
        try:
            files = (*files, recorded.plot(plot, force=output.force))
        except (OSError, SpecError) as error:
            problems.append(f"{str(plot)!r} was not drawn: {error}")

    blocks = (run_blocks if output.is_full else brief_run_blocks)(recorded.report)
    return write_result(
        output,
        lambda: recorded.document,
        lambda: output.show(blocks),
        files,
        problems,
    )
