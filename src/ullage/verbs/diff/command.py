"""`ullage diff`: compares two snapshots, by owner."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ullage.ground.protocol.option import SETTINGS
from ullage.verbs.command_line.command import command
from ullage.verbs.command_line.output import Output
from ullage.verbs.diff.options import DiffOptions
from ullage.verbs.explain.server_log_command import is_server_file, show_server_diff

if TYPE_CHECKING:
    from ullage.verbs.diff.function import Diff


@dataclass(frozen=True, slots=True)
class DiffOutput(Output):
    """The outputs of a comparison."""

    store: bool = SETTINGS(
        "Keep the measured context and workspaces for `ullage gpus`.", default=True
    )


@command()
def diff_command(options: DiffOptions, output: DiffOutput) -> int:
    """Compare two memory snapshots: what grew, what shrank, in which phase, and why.

    \b
    ullage diff before.pickle after.pickle
    ullage diff before.pickle after.pickle -o diff.html
    ullage diff before.log after.log

    The snapshots may be of any version of PyTorch, from a GPU or from `ullage run`. If one was
    predicted and the other measured, the GPU's context and workspaces are kept for `ullage gpus`.
    Of two start-up logs of servers: which option or version took the cache's tokens.
    """
    output.check(".html")
    before, after = Path(options.before), Path(options.after)
    if is_server_file(before) and is_server_file(after):
        return show_server_diff(before, after, output)
    from ullage.verbs.diff.function import diff

    report = diff.act(options)
    exit_code = output.give(report)
    if output.store:
        _store(report, is_json=output.as_json)
    return exit_code


def _store(report: Diff, *, is_json: bool) -> None:
    """Keeps what was measured of the GPU, and says so; or says why not."""
    from ullage.verbs.diff.text import stored_lines

    if report.memory is None:
        return
    path = report.store_memory()
    for line in stored_lines(report.memory, path):
        click.echo(line, err=is_json)
