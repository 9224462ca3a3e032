"""`ullage diff`: what changed between two snapshots, by owner."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ullage.diffs import diff

FILE = click.Path(path_type=Path)


@click.command("diff")
@click.argument("before", type=FILE)
@click.argument("after", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, ullage.diff/1.")
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Also write that document.")
@click.option("--force", is_flag=True, help="Overwrite files that were named.")
@click.option("--quiet", is_flag=True, help="Print the first line alone.")
def diff_command(
    before: Path, after: Path, *, as_json: bool, output: Path | None, force: bool, quiet: bool
) -> None:
    """Compare two memory snapshots at their peaks: what grew, what shrank, and why.

    \b
    ullage diff before.pickle after.pickle

    Of any version of PyTorch, from a GPU or from `ullage run`.
    """
    from ullage.api import check_writable

    if output is not None:
        check_writable(output, force=force)
    found = diff(before, after)
    document = json.dumps(found.document, indent=2)
    if as_json:
        click.echo(document)
    elif quiet:
        click.echo(found.text().partition("\n")[0])
    else:
        from rich.console import Console

        from ullage.report.diff import print_diff

        print_diff(found.report, Console())
    if output is not None:
        output.write_text(document + "\n", encoding="utf-8")
        click.echo(f"Wrote {output}", err=as_json or quiet)
