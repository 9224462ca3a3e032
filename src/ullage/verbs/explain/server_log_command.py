"""`ullage explain` and `ullage diff` of a server's logs, or of saved pages of its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from ullage.verbs.command_line.output import Output
from ullage.verbs.explain.server_log_function import is_server_file

__all__ = ["is_server_file"]


def show_server(file: Path, output: Output, *, unfit: Mapping[str, object]) -> int:
    """Explains a log; the exit code is 1 where the server did not start.

    unfit: the values of options that are for snapshots alone, by name.
    """
    output.check()
    for name, value in unfit.items():
        if value:
            raise click.UsageError(f"{name} is for a memory snapshot; {str(file)!r} is a log")
    from ullage.verbs.explain.server_log_function import explain_server

    server = explain_server(file)
    return output.give(server)


def show_server_diff(before: Path, after: Path, output: Output) -> int:
    """Compares two logs."""
    output.check()
    from ullage.verbs.explain.server_log_function import diff_servers

    diff = diff_servers(before, after)
    return output.give(diff)
