"""`ullage calibrate`: measures the GPU of this machine."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ullage.cli.options import flags
from ullage.files import check_writable, write_text


@click.command("calibrate")
@flags.python
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the rates here; default: where `ullage fit` looks for them.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the JSON document instead of the table."
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def calibrate_command(
    *, python: str | None, output: Path | None, as_json: bool, force: bool
) -> int:
    """Measure the GPU of this machine for about a minute, so that `ullage fit` predicts its times.

    \b
    ullage calibrate --python .venv/bin/python
    ullage fit --gpu h100-80gb -- train.py

    Without -o the rates go into the user's configuration and replace earlier ones. From then on
    `ullage fit` uses them for that GPU, and its report says so.
    """
    from ullage.api.calibrate import calibrate
    from ullage.gpus.rates import default_path

    if output is not None:
        check_writable(output, force=force)
    rates = calibrate(python)
    text = json.dumps(rates.document, indent=2)
    path = output or default_path(rates.gpu)
    path.parent.mkdir(parents=True, exist_ok=True)
    written = write_text(text + "\n", path, force=force or output is None)
    if as_json:
        click.echo(text)
    else:
        from rich.console import Console

        from ullage.report.text.calibrate import print_rates

        print_rates(rates, Console())
    click.echo(f"Wrote {written}", err=as_json)
    return 0
