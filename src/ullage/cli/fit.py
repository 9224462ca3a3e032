"""`ullage fit`: finds the fastest plan under which a program fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ullage.cli.output import UNWRITABLE, Output, check_files, write_result

FILE = click.Path(path_type=Path)


@click.command("fit", context_settings={"allow_interspersed_args": False})
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="-- PROGRAM [ARGUMENTS]")
@click.option("--gpu", metavar="NAME", help="Of `ullage gpus`.")
@click.option("--memory", metavar="SIZE", help="Another total memory, such as 24GiB.")
@click.option("--capability", metavar="M.N", help="Another compute capability, such as 8.9.")
@click.option("--budget", metavar="SIZE", help="How much of it may be used; default: all.")
@click.option(
    "--allow",
    type=click.Choice(("same", "rounding", "training")),
    default="same",
    help="What techniques may change: nothing (default), precisions, or the training.",
)
@click.option(
    "--objective",
    type=click.Choice(("time", "memory")),
    default="time",
    help="The fastest plan that fits (default), or that which takes least.",
)
@click.option("--smallest-gpu", is_flag=True, help="Also find the smallest GPU that would do.")
@click.option("--alloc-conf", metavar="TEXT", help="Sets PYTORCH_ALLOC_CONF for the program.")
@click.option("--steps", type=int, metavar="N", help="Training steps of each run; default: 3.")
@click.option("--python", metavar="PATH", help="The interpreter of another environment.")
@click.option("--dummy-weights", is_flag=True, help="Make up weight files that are not there.")
@click.option(
    "--assume",
    multiple=True,
    metavar="NAME=VALUE",
    help="Of unknown values: nonzero=all|half|none|FRACTION, experts=worst|balanced.",
)
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Write the plan: plan.json.")
@click.option("--html", type=FILE, metavar="FILE", help="Also write a page to look at.")
@click.option("--json", "as_json", is_flag=True, help="Print the document, not the report.")
@click.option("--force", is_flag=True, help="Overwrite files that were named.")
@click.option("--quiet", is_flag=True, help="Print the verdict alone, and no progress.")
def fit_command(
    program: tuple[str, ...],
    *,
    output: Path | None,
    html: Path | None,
    as_json: bool,
    force: bool,
    quiet: bool,
    **options: Any,  # noqa: ANN401 - handed to fits.fit as they are named there
) -> int:
    """Find the fastest way to make a program fit: a plan, seen to fit on the phantom.

    \b
    ullage fit --gpu rtx-4090 -o plan.json -- train.py --batch-size 16
    ullage run --gpu rtx-4090 --plan plan.json -- train.py --batch-size 16
    ullage exec --plan plan.json -- train.py --batch-size 16

    Exits with 0 if it fits, as it is or under a plan, 1 if nothing does, 3 if the program failed
    for a reason of its own.
    """
    shown = Output(is_json=as_json, is_quiet=quiet, path=None, force=force)
    check_files(("--output", output), ("--html", html), force=force)
    from ullage.fits import Fit, fit

    def show(found: Fit) -> None:
        from rich.console import Console

        from ullage.report.fit import fit_line, print_fit

        if quiet:
            click.echo(fit_line(found.report))
        else:
            print_fit(found.report, Console())

    with shown.progress() as on_progress:
        found = fit(
            program,
            on_progress=on_progress,
            on_failure=lambda text: click.echo(text, err=True),
            **options,
        )
    files = _write_files(found, output, html, force=force)
    is_written = write_result(shown, lambda: found.document, lambda: show(found), files, [])
    return found.exit_code if is_written else UNWRITABLE


def _write_files(found: Any, output: Path | None, html: Path | None, *, force: bool) -> list[Any]:  # noqa: ANN401
    """The plan, if there is one, and the page."""
    from ullage.files import write_text

    files: list[Any] = []
    if output is not None and found.plan is not None:
        found.plan.save(output, force=force)
        files.append(output)
    if html is not None:
        files.append(write_text(found.html, html, force=force))
    return files
