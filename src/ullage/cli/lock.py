"""`ullage lock`: writes the memory that scenarios need into the lock file."""

from __future__ import annotations

from pathlib import Path

import click

from ullage.cli.options import flags
from ullage.cli.output import Output, check_files


@click.command("lock")
@flags.scenarios
@click.option(
    "--update",
    multiple=True,
    metavar="NAME",
    help="Update this scenario, even if it needs more; '*': all.",
)
@flags.config
@flags.python
@flags.no_cache
@flags.document_output
@flags.as_json
@flags.force
@flags.quiet
def lock_command(
    scenarios: tuple[str, ...],
    *,
    update: tuple[str, ...],
    config: Path | None,
    python: str | None,
    no_cache: bool,
    output: Path | None,
    as_json: bool,
    force: bool,
    quiet: bool,
) -> int:
    """Run scenarios on simulated GPUs, and write the memory that they need into ullage.lock.

    \b
    ullage lock
    ullage lock --update train

    An existing entry stays as it is, unless --update names it. See `ullage check`.

    Exits with 0, 1 if a scenario runs out of memory, 3 if a program failed.
    """
    from ullage.api.lock import lock
    from ullage.report.text.lock import locked_blocks

    target = Output(is_json=as_json, is_quiet=quiet, path=output, force=force)
    check_files(("--output", output), force=force)
    with target.progress() as on_progress:
        locked = lock(
            scenarios, update=update, config=config, python=python, cached=not no_cache,
            on_progress=on_progress,
        )  # fmt: skip

    return target.give(
        locked, locked_blocks(locked.report), [locked.report.path],
        exit_code=locked.exit_code,
    )  # fmt: skip
