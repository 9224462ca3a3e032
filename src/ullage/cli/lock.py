"""`ullage lock`: writes the memory that scenarios need into the lock file."""

from __future__ import annotations

from dataclasses import replace

from ullage.cli.check import name_configuration
from ullage.cli.options.command import command
from ullage.cli.output import Output
from ullage.protocol.options.check import LockOptions


@command(outputs=("output", "as_json", "force", "quiet"))
def lock_command(options: LockOptions, output: Output) -> int:
    """Run scenarios on simulated GPUs, and write the memory that they need into ullage.lock.

    \b
    ullage lock
    ullage lock --update train

    An existing entry stays unchanged, unless --update names it. See `ullage check`.

    Exits with 0, 1 if a scenario runs out of memory, 3 if a program failed.
    """
    from ullage.api.lock import lock
    from ullage.report.text.lock import locked_blocks

    config = name_configuration(options.config)
    output.check()
    with output.progress() as on_progress:
        locked = lock.act(replace(options, config=config, on_progress=on_progress))

    return output.give(locked, locked_blocks(locked.report), [locked.report.path])
