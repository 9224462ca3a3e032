"""`ullage env`: creates a small environment to run programs in."""

from __future__ import annotations

from pathlib import Path

import click

from ullage.phantom.environment import EnvironmentSpec, make_environment


@click.command("env")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), metavar="DIR")
@click.option("--torch", metavar="VERSION", help="Version of PyTorch; default: the newest.")
@click.option(
    "-r",
    "--requirement",
    "requirements",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="Also install the packages that this file lists; repeatable.",
)
@click.option("--with-triton", is_flag=True, help="Install Triton, which torch.compile needs.")
@click.option(
    "--python",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Python to create it with; default: the one that runs ullage.",
)
@click.option("--force", is_flag=True, help="Replace an environment with other contents.")
def env_command(
    directory: Path,
    *,
    torch: str | None,
    requirements: tuple[Path, ...],
    with_triton: bool,
    python: Path | None,
    force: bool,
) -> None:
    """Create a small environment: PyTorch's CUDA build without NVIDIA's packages.

    `ullage run --python DIR/bin/python` runs programs in it. It needs about 1.5 GB of disk
    instead of 5. An environment that already has the right contents is not changed.
    """
    spec = EnvironmentSpec(torch, requirements, has_triton=with_triton, python=python)
    make_environment(directory, spec, force=force, progress=lambda line: click.echo(line, err=True))
    click.echo(f"Wrote {directory}")
