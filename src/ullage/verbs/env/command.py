"""`ullage env`: creates a small environment to run programs in."""

from __future__ import annotations

import click

from ullage.ground.errors import SpecError
from ullage.verbs.command_line.command import command
from ullage.verbs.env.options import EnvOptions


@command()
def env_command(options: EnvOptions) -> None:
    """Create a small environment: PyTorch's CUDA build without NVIDIA's packages.

    `ullage run --python DIR/bin/python` runs programs in it. It needs about 1.5 GB of disk
    instead of 5. An environment that already has the right contents is not changed.
    """
    from ullage.players.phantom.environment import make_environment

    if options.directory.is_file():
        raise SpecError(f"{str(options.directory)!r} is a file; give a directory")
    make_environment(
        options.directory, options, force=options.force,
        progress=lambda line: click.echo(line, err=True),
    )  # fmt: skip
    click.echo(f"Wrote {options.directory}")
