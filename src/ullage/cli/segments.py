"""`ullage segments`: compares ways to checkpoint a chain of modules in segments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ullage.cli import flags
from ullage.cli.output import (
    FILE,
    UNWRITABLE,
    Output,
    check_files,
    save_plan,
    show_failure,
    write_result,
)


@click.command("segments", context_settings={"allow_interspersed_args": False})
@flags.program
@click.option("--chain", metavar="PATH", help="A torch.nn.Sequential; default: which keeps most.")
@click.option("--gpu", metavar="NAME", help="Whose rates the times are by; of `ullage gpus`.")
@click.option("--plot", type=FILE, metavar="FILE", help="Draw it: .svg, .png or .pdf.")
@flags.search_steps
@flags.python
@flags.plan_output
@flags.as_json
@flags.force
@click.option("--quiet", is_flag=True, help="Print one line alone, and no progress.")
def segments_command(
    program: tuple[str, ...],
    *,
    plot: Path | None,
    output: Path | None,
    as_json: bool,
    force: bool,
    quiet: bool,
    **options: Any,  # noqa: ANN401 - handed to compare_segments as they are named there
) -> int:
    """Compare uniform, square-root and optimal segments of a model's chain of modules, each
    checkpointed as one: memory against operations that are done again, as seen on the phantom.

    \b
    ullage segments -o plan.json -- train.py
    ullage run --gpu rtx-4090 --plan plan.json -- train.py

    Exits with 0, or with 3 if the program failed for a reason of its own.
    """
    shown = Output(is_json=as_json, is_quiet=quiet, path=None, force=force)
    check_files(("--output", output), ("--plot", plot), force=force)
    if plot is not None:
        from ullage.report.page.plot import check_plot

        check_plot(plot)
    from ullage.api.segments import compare_segments
    from ullage.report.text.segments import print_segments, segments_line

    with shown.progress() as on_progress:
        found = compare_segments(
            program, on_progress=on_progress, on_failure=show_failure, **options
        )
    files = save_plan(found.plan, output, force=force)
    if plot is not None and found.report.cuts:
        from ullage.report.page.plot import plot_segments

        plot_segments(found.report, plot)
        files.append(plot)
    is_written = write_result(
        shown,
        lambda: found.document,
        lambda: shown.show(found.report, segments_line, print_segments),
        files,
    )
    return found.exit_code if is_written else UNWRITABLE
