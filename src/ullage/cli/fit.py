"""`ullage fit`: finds the fastest plan under which a program fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ullage.cli.largest import chosen_variable, fit_largest
from ullage.cli.output import UNWRITABLE, Output, check_files, write_result
from ullage.errors import SpecError

FILE = click.Path(path_type=Path)


@click.command("fit", context_settings={"allow_interspersed_args": False})
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="-- PROGRAM [ARGUMENTS]")
@click.option("--gpu", metavar="NAME", help="Of `ullage gpus`.")
@click.option("--memory", metavar="SIZE", help="Another total memory, such as 24GiB.")
@click.option("--capability", metavar="M.N", help="Another compute capability, such as 8.9.")
@click.option("--budget", metavar="SIZE", help="How much of it may be used; default: all.")
@click.option(
    "--allow",
    type=click.Choice(("none", "same", "rounding", "training")),
    default="same",
    help="What techniques may change: nothing (default), precisions, or the training; none: no "
    "techniques, with --max-batch.",
)
@click.option(
    "--objective",
    type=click.Choice(("time", "memory")),
    default="time",
    help="The fastest plan that fits (default), or that which takes least.",
)
@click.option("--smallest-gpu", is_flag=True, help="Also find the smallest GPU that would do.")
@click.option("--max-batch", is_flag=True, help="Find the largest {batch} instead.")
@click.option("--largest", metavar="NAME", help="The largest of another variable, as {length}.")
@click.option("--multiple-of", type=int, metavar="N", help="Try only multiples of it.")
@click.option("--gpus", type=int, default=1, metavar="N", help="Share it among N such GPUs.")
@click.option("--rates", metavar="FILE", help="Of `ullage calibrate`; or: catalogue.")
@click.option("--ray", metavar="ADDRESS", help="Search on this Ray cluster: HOST:PORT, auto.")
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
    max_batch: bool,
    largest: str | None,
    multiple_of: int | None,
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
    ullage fit --gpu rtx-4090 --max-batch -- train.py --batch-size {batch}

    Exits with 0 if it fits, as it is or under a plan, 1 if nothing does, 3 if the program failed
    for a reason of its own.
    """
    shown = Output(is_json=as_json, is_quiet=quiet, path=None, force=force)
    _check_output(program, output, force=force)
    check_files(("--output", output), ("--html", html), force=force)
    if variable := chosen_variable(largest, is_batch=max_batch, multiple_of=multiple_of):
        told = {**options, "html": html, "multiple_of": multiple_of}
        return fit_largest(program, variable, shown, output, told)
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


def _check_output(program: tuple[str, ...], output: Path | None, *, force: bool) -> None:
    """Raises SpecError where a file is asked for that the program has no use for, or where that
    which goes beside it cannot be written.
    """
    if output is None or output.suffix not in {".yaml", ".yml"}:
        return
    if not {"launch", "accelerate.commands.launch"} & set(program[:3]):
        raise SpecError(
            f"{str(output)!r} would be a configuration of Accelerate, and the program is not "
            "started by `accelerate launch`; start it so, or name the plan plan.json"
        )
    check_files(("--output", _plan_beside(output)), force=force)


def _plan_beside(output: Path) -> Path:
    """Where a plan goes that says what a launcher's configuration cannot."""
    return output.with_suffix(".plan.json")


def _write_files(found: Any, output: Path | None, html: Path | None, *, force: bool) -> list[Any]:  # noqa: ANN401
    """The plan, if there is one, and the page."""
    from ullage.files import write_text

    files: list[Any] = []
    best = found.report.best
    has_configuration = best is not None and bool(best.configuration)
    if output is not None and has_configuration:
        files.append(write_text(best.configuration, output, force=force))
    if output is not None and found.plan is not None:
        path = _plan_beside(output) if has_configuration else output
        found.plan.save(path, force=force)
        files.append(path)
    if html is not None:
        files.append(write_text(found.html, html, force=force))
    return files
