"""`ullage segments`: compares ways to checkpoint a chain of modules in segments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from ullage.cli.options import flags
from ullage.cli.output import (
    FILE,
    UNWRITABLE,
    Output,
    check_files,
    save_plan,
    show_failure,
    write_result,
)


@dataclass(frozen=True, slots=True)
class SegmentsOptions:
    """The parameters of `ullage segments`, named as there."""

    program: tuple[str, ...]
    chain: str | None
    gpu: str | None
    plot: Path | None
    steps: int | None
    python: str | None
    output: Path | None
    as_json: bool
    force: bool
    quiet: bool


@click.command("segments", context_settings={"allow_interspersed_args": False})
@flags.program
@click.option(
    "--chain",
    metavar="PATH",
    help="Path of a torch.nn.Sequential; default: the one that keeps most.",
)
@click.option(
    "--gpu", metavar="NAME", help="GPU whose rates predict the times (see `ullage gpus`)."
)
@click.option("--plot", type=FILE, metavar="FILE", help="Draw it: .svg, .png or .pdf.")
@flags.search_steps
@flags.python
@flags.plan_output
@flags.as_json
@flags.force
@click.option("--quiet", is_flag=True, help="Print only one line, without progress.")
@flags.as_record(SegmentsOptions)
def segments_command(options: SegmentsOptions) -> int:
    """Compare uniform, square-root and optimal checkpointing segments of a chain of modules:
    memory against recomputation, measured on a simulated GPU.

    \b
    ullage segments -o plan.json -- train.py
    ullage run --gpu rtx-4090 --plan plan.json -- train.py

    Exits with 0, or with 3 if the program itself failed.
    """
    target = Output(is_json=options.as_json, is_quiet=options.quiet, path=None, force=options.force)
    plot = options.plot
    check_files(("--output", options.output), ("--plot", plot), force=options.force)
    if plot is not None:
        from ullage.report.page.plot import check_plot

        check_plot(plot)
    from ullage.api.segments import compare_segments
    from ullage.report.text.segments import print_segments, segments_line

    with target.progress() as on_progress:
        comparison = compare_segments(
            options.program,
            options.chain,
            gpu=options.gpu,
            steps=options.steps,
            python=options.python,
            on_progress=on_progress,
            on_failure=show_failure,
        )
    files = save_plan(comparison.plan, options.output, force=options.force)
    if plot is not None and comparison.report.cuts:
        from ullage.report.page.plot import plot_segments

        plot_segments(comparison.report, plot)
        files.append(plot)
    is_written = write_result(
        target,
        lambda: comparison.document,
        lambda: target.show(comparison.report, segments_line, print_segments),
        files,
    )
    return comparison.exit_code if is_written else UNWRITABLE
