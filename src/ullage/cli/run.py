"""`ullage run`: runs a program on a GPU that is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ullage import api
from ullage.cli.output import UNWRITABLE, Output, write_run, write_sweep
from ullage.errors import SpecError

FILE = click.Path(path_type=Path)


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="-- PROGRAM [ARGUMENTS]")
@click.option(
    "--gpu", metavar="NAME[,...]", help="Of `ullage gpus`, one or more; default: an endless H100."
)
@click.option(
    "--sweep",
    multiple=True,
    metavar="NAME=A,B,...",
    help="Run with each value in place of {NAME}; may be given several times.",
)
@click.option("--plot", type=FILE, metavar="FILE", help="Draw a sweep: .svg, .png or .pdf.")
@click.option("--memory", metavar="SIZE", help="Another total memory, such as 24GiB.")
@click.option("--capability", metavar="M.N", help="Another compute capability, such as 8.9.")
@click.option("--alloc-conf", metavar="TEXT", help="Sets PYTORCH_ALLOC_CONF for the program.")
@click.option("--steps", type=int, metavar="N", help="Stop after N training steps.")
@click.option("--python", metavar="PATH", help="The interpreter of another environment.")
@click.option("--real-init", is_flag=True, help="Really initialise weights on the CPU.")
@click.option(
    "--snapshot", type=FILE, metavar="FILE", help="The memory snapshot; default: a new name here."
)
@click.option(
    "-o", "--output", type=FILE, metavar="FILE", help="Also write the run document (JSON)."
)
@click.option("--json", "as_json", is_flag=True, help="Print the run document, not the report.")
@click.option("--force", is_flag=True, help="Overwrite files that were named.")
@click.option("--quiet", is_flag=True, help="Print the verdict alone, and no progress.")
def run_command(
    program: tuple[str, ...],
    *,
    gpu: str | None,
    sweep: tuple[str, ...],
    plot: Path | None,
    snapshot: Path | None,
    output: Path | None,
    as_json: bool,
    quiet: bool,
    force: bool,
    **options: Any,  # noqa: ANN401 - handed to api.run as they are named there
) -> int:
    """Run a program on a GPU that is not there: does it fit, what is its peak, who owns it?

    \b
    ullage run --gpu h100-80gb -- train.py --batch-size 16
    ullage run --memory 24GiB -- -m package.train
    ullage run --gpu l4 --sweep batch=1,2,4 -- train.py --batch-size {batch}

    Exits with 0 if it fits, 1 if it does not, 3 if the program failed for a reason of its own.
    """
    shown = Output(is_json=as_json, is_quiet=quiet, path=output, force=force)
    if output is not None:
        api.check_writable(output, force=force)
        if snapshot is not None and output.absolute() == snapshot.absolute():
            raise SpecError(f"--output and --snapshot both name {str(output)!r}; give two names")
    gpus = None if gpu is None else gpu.split(",")
    if sweep or len(gpus or ()) > 1:
        if snapshot is not None:
            raise SpecError("a sweep keeps no snapshots; leave --snapshot out, or run one value")
        options |= {"gpu": gpus, "variables": _parse_variables(sweep)}
        return _sweep(program, shown, plot, force=force, **options)
    if plot is not None:
        raise SpecError("--plot draws a sweep; add --sweep NAME=A,B,... or several GPUs")
    kept = snapshot or api.default_snapshot(program, options["python"])
    options |= {"gpu": gpu, "snapshot": kept}
    with shown.progress() as on_progress:
        result = api.run(
            program, force=force, stdout_to_stderr=as_json, on_progress=on_progress, **options
        )
    return result.exit_code if write_run(result, shown, snapshot) else UNWRITABLE


def _sweep(
    program: tuple[str, ...],
    shown: Output,
    plot: Path | None,
    *,
    force: bool,
    **options: Any,  # noqa: ANN401 - handed to sweeps.sweep as they are named there
) -> int:
    """Several runs: one table."""
    from ullage.report.plot import check_plot
    from ullage.sweeps import sweep

    if plot is not None:
        check_plot(plot)
        api.check_writable(plot, force=force)
        if shown.path is not None and plot.absolute() == shown.path.absolute():
            raise SpecError(f"--output and --plot both name {str(plot)!r}; give two names")
    with shown.progress() as on_progress:
        result = sweep(
            program,
            on_progress=on_progress,
            on_failure=lambda text: click.echo(text, err=True),
            **options,
        )
    if plot is not None:
        result.plot(plot, force=force)
    return result.exit_code if write_sweep(result, shown, plot) else UNWRITABLE


def _parse_variables(texts: tuple[str, ...]) -> dict[str, list[str]]:
    """The variables of --sweep."""
    variables: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals:
            raise SpecError(
                f"--sweep {text!r} gives no values; write, such as: --sweep batch=1,2,4"
            )
        if name in variables:
            raise SpecError(f"--sweep names {name!r} twice; give all its values at once")
        variables[name] = values.split(",")
    return variables
