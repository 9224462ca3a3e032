"""`ullage diff`: compares two snapshots, by owner."""

from __future__ import annotations

from pathlib import Path

import click

from ullage.api.diff import Diff, diff
from ullage.cli.options import flags
from ullage.cli.output import FILE, Output, check_files
from ullage.cli.server_log import is_server_file, show_server_diff


@click.command("diff")
@click.argument("before", type=FILE)
@click.argument("after", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="Print the JSON document (ullage.diff/1).")
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Also write that document.")
@click.option(
    "--no-store",
    is_flag=True,
    help="Do not keep the measured context and workspaces for `ullage gpus`.",
)
@flags.html
@flags.force
@flags.quiet
def diff_command(
    before: Path,
    after: Path,
    *,
    as_json: bool,
    output: Path | None,
    no_store: bool,
    html: Path | None,
    force: bool,
    quiet: bool,
) -> int:
    """Compare two memory snapshots: what grew, what shrank, in which phase, and why.

    \b
    ullage diff before.pickle after.pickle
    ullage diff before.pickle after.pickle --html diff.html
    ullage diff before.log after.log

    The snapshots may be of any version of PyTorch, from a GPU or from `ullage run`. If one was
    predicted and the other measured, the GPU's context and workspaces are kept for `ullage gpus`.
    Of two start-up logs of servers: which option or version took the cache's tokens.
    """
    from ullage.report.text.diff import diff_blocks

    target = Output(is_json=as_json, is_quiet=quiet, path=output, force=force)
    check_files(("--output", output), ("--html", html), force=force)
    if is_server_file(before) and is_server_file(after):
        return show_server_diff(before, after, target, html=html)
    report = diff(before, after)

    exit_code = target.give(report, diff_blocks(report.report), html=html)
    if not no_store:
        _store(report, is_json=as_json)
    return exit_code


def _store(report: Diff, *, is_json: bool) -> None:
    """Keeps what was measured of the GPU, and says so; or says why not."""
    from ullage.report.text.diff import stored_lines

    if report.memory is None:
        return
    path = report.store_memory()
    for line in stored_lines(report.memory, path):
        click.echo(line, err=is_json)
