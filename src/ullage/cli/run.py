"""`ullage run`: runs a program on a GPU that is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ullage import api
from ullage.cli.output import Output, write_run
from ullage.errors import SpecError

FILE = click.Path(path_type=Path)


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="-- PROGRAM [ARGUMENTS]")
@click.option("--gpu", metavar="NAME", help="One of `ullage gpus`; default: an H100 without limit.")
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

    Exits with 0 if it fits, 1 if it does not, 3 if the program failed for a reason of its own.
    """
    shown = Output(is_json=as_json, is_quiet=quiet, path=output)
    if output is not None:
        api.check_writable(output, force=force)
        if snapshot is not None and output.absolute() == snapshot.absolute():
            raise SpecError(f"--output and --snapshot both name {str(output)!r}; give two names")
    options["snapshot"] = snapshot or api.default_snapshot(program, options["python"])
    with shown.progress() as on_progress:
        result = api.run(
            program, force=force, stdout_to_stderr=as_json, on_progress=on_progress, **options
        )
    write_run(result, shown)
    return result.exit_code
