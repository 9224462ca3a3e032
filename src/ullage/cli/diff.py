"""`ullage diff`: compares two snapshots, by owner."""

from __future__ import annotations

from pathlib import Path

import click

from ullage.api.diff import diff
from ullage.cli.options import flags
from ullage.cli.output import FILE, UNWRITABLE, Output, check_files, write_result


@click.command("diff")
@click.argument("before", type=FILE)
@click.argument("after", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="Print the JSON document (ullage.diff/1).")
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Also write that document.")
@flags.html
@flags.force
@flags.quiet
def diff_command(
    before: Path,
    after: Path,
    *,
    as_json: bool,
    output: Path | None,
    html: Path | None,
    force: bool,
    quiet: bool,
) -> int:
    """Compare two memory snapshots: what grew, what shrank, in which phase, and why.

    \b
    ullage diff before.pickle after.pickle
    ullage diff before.pickle after.pickle --html diff.html

    The snapshots may be of any version of PyTorch, from a GPU or from `ullage run`.
    """
    from ullage.files import write_text
    from ullage.report.text.diff import diff_line, print_diff

    target = Output(is_json=as_json, is_quiet=quiet, path=output, force=force)
    check_files(("--output", output), ("--html", html), force=force)
    report = diff(before, after)

    pages = [] if html is None else [write_text(report.html, html, force=force)]
    is_written = write_result(
        target,
        lambda: report.document,
        lambda: target.show(report.report, diff_line, print_diff),
        pages,
    )
    return 0 if is_written else UNWRITABLE
