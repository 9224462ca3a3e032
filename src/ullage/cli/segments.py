"""`ullage segments`: compares ways to checkpoint a chain of modules in segments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ullage.cli.output import UNWRITABLE, Output, check_files, write_result

FILE = click.Path(path_type=Path)


@click.command("segments", context_settings={"allow_interspersed_args": False})
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="-- PROGRAM [ARGUMENTS]")
@click.option("--chain", metavar="PATH", help="A torch.nn.Sequential; default: which keeps most.")
@click.option("--gpu", metavar="NAME", help="Whose rates the times are by; of `ullage gpus`.")
@click.option("--plot", type=FILE, metavar="FILE", help="Draw it: .svg, .png or .pdf.")
@click.option("--steps", type=int, metavar="N", help="Training steps of each run; default: 3.")
@click.option("--python", metavar="PATH", help="The interpreter of another environment.")
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Write the plan: plan.json.")
@click.option("--json", "as_json", is_flag=True, help="Print the document, not the report.")
@click.option("--force", is_flag=True, help="Overwrite files that were named.")
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
        from ullage.report.plot import check_plot

        check_plot(plot)
    from ullage.segmentations import Segmentations, compare_segments

    def show(found: Segmentations) -> None:
        from rich.console import Console

        from ullage.report.segments import print_segments, segments_line

        if quiet:
            click.echo(segments_line(found.report))
        else:
            print_segments(found.report, Console())

    with shown.progress() as on_progress:
        found = compare_segments(
            program,
            on_progress=on_progress,
            on_failure=lambda text: click.echo(text, err=True),
            **options,
        )
    files = []
    if output is not None and found.plan is not None:
        found.plan.save(output, force=force)
        files.append(output)
    if plot is not None and found.report.cuts:
        from ullage.report.plot import plot_segments

        plot_segments(found.report, plot)
        files.append(plot)
    is_written = write_result(shown, lambda: found.document, lambda: show(found), files, [])
    return found.exit_code if is_written else UNWRITABLE
